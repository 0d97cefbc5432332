# The small segmentation config cut down to 4 blocks of 32 channels and 4 iterations, for the tests.
_base_ = '../configs/semfpn_xcit_n12_p16_small.py'

model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=32, depth=4, num_heads=4, out_indices=(0, 1, 2, 3))),
    neck=dict(in_channels=[32] * 4))
train_dataloader = dict(batch_size=2, num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
train_cfg = dict(max_iters=4, val_interval=2)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=2))
