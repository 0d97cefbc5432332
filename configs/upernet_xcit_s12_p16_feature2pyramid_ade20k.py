# UperNet on plain tokens of XCiT small 12, patch 16: the pyramid is mmseg's Feature2Pyramid instead of XCiT's own.
# No result is published, and none is measured here.
_base_ = './upernet_xcit_s12_p16_ade20k.py'
model = dict(
    backbone=dict(out_strides=None),
    neck=dict(type='Feature2Pyramid', embed_dim=384, rescales=[4, 2, 1, 0.5], norm_cfg=dict(type='SyncBN')))
