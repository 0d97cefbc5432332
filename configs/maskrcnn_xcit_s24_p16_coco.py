# Mask R-CNN on XCiT small 24, patch 16, COCO 2017, from ImageNet weights.
# Published by the authors, not measured here: box AP 46.5, mask AP 41.8.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='small_24_p16',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://small_24_p16_384_dist')),
    neck=dict(in_channels=[384] * 4))
