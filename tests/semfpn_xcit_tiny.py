# The small segmentation config cut down to 4 blocks of 32 channels, images of 96 pixels, 4 iterations; for the tests.
_base_ = '../configs/semfpn_xcit_n12_p16_small.py'

_base_.train_dataloader.dataset.pipeline[2].scale = (96, 96)
_base_.train_dataloader.dataset.pipeline[3].crop_size = (80, 80)
_base_.val_dataloader.dataset.pipeline[1].scale = (96, 96)
_base_.test_dataloader.dataset.pipeline[1].scale = (96, 96)
model = dict(
    data_preprocessor=dict(size=(80, 80)),
    backbone=dict(arch=dict(_delete_=True, embed_dims=32, depth=4, num_heads=4, out_indices=(0, 1, 2, 3))),
    neck=dict(in_channels=[32] * 4))
train_dataloader = dict(batch_size=2, num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
train_cfg = dict(max_iters=4, val_interval=2)
default_hooks = dict(logger=dict(interval=1), checkpoint=dict(interval=2))
