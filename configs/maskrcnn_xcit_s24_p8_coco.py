# Mask R-CNN on XCiT small 24, patch 8, COCO 2017, from ImageNet weights.
# Published by the authors, not measured here: box AP 48.1, mask AP 43.0.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='small_24_p8',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://small_24_p8_384_dist')),
    neck=dict(in_channels=[384] * 4))
