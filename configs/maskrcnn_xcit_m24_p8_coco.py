# Mask R-CNN on XCiT medium 24, patch 8, COCO 2017, from ImageNet weights.
# Published by the authors, not measured here: box AP 48.5, mask AP 43.7.
_base_ = '_base_/maskrcnn_xcit_coco.py'
model = dict(
    backbone=dict(
        arch='medium_24_p8',
        drop_path_rate=0.15,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://medium_24_p8_384_dist')),
    neck=dict(in_channels=[512] * 4))
