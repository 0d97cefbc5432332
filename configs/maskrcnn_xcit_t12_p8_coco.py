# Mask R-CNN on XCiT tiny 12, patch 8, COCO 2017, from ImageNet weights.
# Published by the authors, not measured here: box AP 44.5, mask AP 40.3.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='tiny_12_p8',
        init_cfg=dict(type='Pretrained', checkpoint='xcit://tiny_12_p8_384_dist')),
    neck=dict(in_channels=[192] * 4))
