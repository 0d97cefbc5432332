# UperNet on XCiT tiny 24, patch 16, ADE20k, from ImageNet weights.
# No result is published for this size, and none is measured here; the drop path rate is our choice.
_base_ = '_base_/upernet_xcit_ade20k.py'
model = dict(
    backbone=dict(
        arch='tiny_24_p16',
        drop_path_rate=0.05,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://tiny_24_p16_384_dist')),
    decode_head=dict(in_channels=[192] * 4),
    auxiliary_head=dict(in_channels=192))
