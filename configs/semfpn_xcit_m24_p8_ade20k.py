# Semantic FPN on XCiT medium 24, patch 8, ADE20k, from ImageNet weights.
# Published by the authors, not measured here: mIoU 46.9.
_base_ = '_base_/semfpn_xcit_ade20k.py'
model = dict(
    backbone=dict(
        arch='medium_24_p8',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://medium_24_p8_384_dist')),
    neck=dict(in_channels=[512] * 4, out_channels=512),
    decode_head=dict(in_channels=[512] * 4))
