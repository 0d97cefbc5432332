# A small Mask R-CNN on XCiT nano 12, patch 16, for any objects with masks. It trains from random weights in minutes
# on a CPU. It uses the same code as the full configs; only sizes differ. Class names come from the data.
_base_ = ['_base_/models/maskrcnn_xcit.py', '_base_/small_coco.py']

model = dict(
    backbone=dict(arch='nano_12_p16'),
    neck=dict(in_channels=[128] * 4, out_channels=64),
    rpn_head=dict(in_channels=64, feat_channels=64, anchor_generator=dict(scales=[6])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64, roi_layer=dict(sampling_ratio=2)),
        bbox_head=dict(in_channels=64, fc_out_channels=256),
        mask_roi_extractor=dict(out_channels=64, roi_layer=dict(sampling_ratio=2)),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=300, max_per_img=100),
        rcnn=dict(sampler=dict(num=32))),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100), rcnn=dict(max_per_img=50)))
