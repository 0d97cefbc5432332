# Semantic FPN on XCiT. A leaf config sets the arch, its drop_path_rate, and the channels of neck and head.
_base_ = './segmentor_xcit.py'

model = dict(
    neck=dict(type='FPN', in_channels=[384] * 4, out_channels=384, num_outs=4),
    decode_head=dict(
        type='FPNHead',
        in_channels=[384] * 4,
        in_index=[0, 1, 2, 3],
        feature_strides=[4, 8, 16, 32],
        channels=128,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='SyncBN'),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)))
