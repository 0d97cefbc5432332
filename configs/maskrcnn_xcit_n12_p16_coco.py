# Mask R-CNN on XCiT nano 12, patch 16, COCO 2017, from ImageNet weights.
# No result is published for this size, and none is measured here.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='nano_12_p16',
        init_cfg=dict(type='Pretrained', checkpoint='xcit://nano_12_p16_384_dist')),
    neck=dict(in_channels=[128] * 4))
