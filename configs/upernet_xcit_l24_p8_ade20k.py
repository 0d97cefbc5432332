# UperNet on XCiT large 24, patch 8, ADE20k, from ImageNet weights.
# No result is published for this size, and none is measured here; the drop path rate is our choice.
_base_ = '_base_/upernet_xcit_ade20k.py'
model = dict(
    backbone=dict(
        arch='large_24_p8',
        drop_path_rate=0.2,
        init_cfg=dict(type='Pretrained', checkpoint='xcit://large_24_p8_384_dist')),
    decode_head=dict(in_channels=[768] * 4),
    auxiliary_head=dict(in_channels=768))
