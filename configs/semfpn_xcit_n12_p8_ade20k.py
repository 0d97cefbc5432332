# Semantic FPN on XCiT nano 12, patch 8, ADE20k, from ImageNet weights.
# No result is published for this size, and none is measured here.
_base_ = '_base_/semfpn_xcit_ade20k.py'
model = dict(
    backbone=dict(
        arch='nano_12_p8',
        init_cfg=dict(type='Pretrained', checkpoint='xcit://nano_12_p8_384_dist')),
    neck=dict(in_channels=[128] * 4, out_channels=128),
    decode_head=dict(in_channels=[128] * 4))
