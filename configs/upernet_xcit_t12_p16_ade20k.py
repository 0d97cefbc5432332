# UperNet on XCiT tiny 12, patch 16, ADE20k, from ImageNet weights.
# Published by the authors, not measured here: mIoU 41.5.
_base_ = '_base_/upernet_xcit_ade20k.py'
model = dict(
    backbone=dict(
        arch='tiny_12_p16',
        init_cfg=dict(type='Pretrained', checkpoint='xcit://tiny_12_p16_384_dist')),
    decode_head=dict(in_channels=[192] * 4),
    auxiliary_head=dict(in_channels=192))
