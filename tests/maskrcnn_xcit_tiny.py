# The small config cut down for the tests to 4 blocks of 32 channels, images of 96 pixels, 3 iterations an epoch.
_base_ = '../configs/maskrcnn_xcit_n12_p16_small.py'

_base_.train_dataloader.dataset.pipeline[2].scale = (96, 96)
_base_.val_dataloader.dataset.pipeline[1].scale = (96, 96)
_base_.test_dataloader.dataset.pipeline[1].scale = (96, 96)
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=32, depth=4, num_heads=4, out_indices=(0, 1, 2, 3))),
    neck=dict(in_channels=[32] * 4, out_channels=32),
    rpn_head=dict(in_channels=32, feat_channels=32),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=32), bbox_head=dict(in_channels=32, fc_out_channels=64),
        mask_roi_extractor=dict(out_channels=32), mask_head=dict(num_convs=1, in_channels=32, conv_out_channels=32)))
train_dataloader = dict(batch_size=2, num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=2)
default_hooks = dict(logger=dict(interval=1))
