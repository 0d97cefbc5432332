# Mask R-CNN on XCiT tiny 24, patch 8, COCO 2017, from ImageNet weights.
# No result is published for this size, and none is measured here; the drop path rate is our choice.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='tiny_24_p8',
        drop_path_rate=0.05,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://tiny_24_p8_384_dist')),
    neck=dict(in_channels=[192] * 4))
