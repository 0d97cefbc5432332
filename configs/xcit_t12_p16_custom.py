# XCiT tiny 12, patch 16, fine-tuned on your own images like xcit_s12_p16_custom: --data-root DIR is all it needs.
_base_ = './xcit_s12_p16_custom.py'
model = dict(
    backbone=dict(
        arch='tiny_12_p16',
        drop_path_rate=0.,
        init_cfg=dict(checkpoint='xcit://tiny_12_p16_224_dist')))
