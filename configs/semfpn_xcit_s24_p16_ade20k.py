# Semantic FPN on XCiT small 24, patch 16, ADE20k, from ImageNet weights.
# Published by the authors, not measured here: mIoU 44.6.
_base_ = '_base_/semfpn_xcit_ade20k.py'
model = dict(
    backbone=dict(
        arch='small_24_p16',
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://small_24_p16_384_dist')),
    neck=dict(in_channels=[384] * 4, out_channels=384),
    decode_head=dict(in_channels=[384] * 4))
