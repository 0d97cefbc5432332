# Mask R-CNN on XCiT tiny 12, patch 16, COCO 2017, from ImageNet weights.
# Published by the authors, not measured here: box AP 42.7, mask AP 38.5.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='tiny_12_p16',
        init_cfg=dict(type='Pretrained', checkpoint='xcit://tiny_12_p16_384_dist')),
    neck=dict(in_channels=[192] * 4))
