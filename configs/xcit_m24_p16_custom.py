# XCiT medium 24, patch 16, fine-tuned on your own images like xcit_s12_p16_custom: --data-root DIR is all it needs.
_base_ = './xcit_s12_p16_custom.py'
model = dict(
    backbone=dict(
        arch='medium_24_p16',
        drop_path_rate=0.15,
        init_cfg=dict(checkpoint='xcit://medium_24_p16_224_dist')))
