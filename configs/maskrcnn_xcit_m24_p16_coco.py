# Mask R-CNN on XCiT medium 24, patch 16, COCO 2017, from ImageNet weights.
# Published by the authors, not measured here: box AP 46.7, mask AP 42.0.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='medium_24_p16',
        drop_path_rate=0.15,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://medium_24_p16_384_dist')),
    neck=dict(in_channels=[512] * 4))
