# UperNet on XCiT medium 24, patch 8, ADE20k, from ImageNet weights.
# Published by the authors, not measured here: mIoU 48.4.
_base_ = '_base_/upernet_xcit_ade20k.py'
model = dict(
    backbone=dict(
        arch='medium_24_p8',
        drop_path_rate=0.15,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://medium_24_p8_384_dist')),
    decode_head=dict(in_channels=[512] * 4),
    auxiliary_head=dict(in_channels=512))
