# DINO, the detector (not the training without labels), on XCiT small 12, patch 8, COCO 2017 boxes, from ImageNet
# weights.
# No result is published, and none is measured here.
_base_ = './dino_xcit_s12_p16_coco.py'
model = dict(
    backbone=dict(
        arch='small_12_p8', init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p8_384_dist')))
