# A small CondInst on XCiT nano 12, patch 16, for any objects with masks. It trains from random weights in minutes on a
# CPU, with the code of the full config; only sizes differ. Class names come from the data.
_base_ = ['_base_/models/condinst_xcit.py', '_base_/small_coco.py']

model = dict(
    backbone=dict(arch='nano_12_p16'),
    neck=dict(in_channels=[128] * 3, out_channels=64),
    bbox_head=dict(in_channels=64, feat_channels=64, stacked_convs=2),
    mask_head=dict(mask_feature_head=dict(in_channels=64, feat_channels=32, num_stacked_convs=2)),
    test_cfg=dict(nms_pre=300, max_per_img=50))
