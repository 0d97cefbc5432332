# SegFormer's all-MLP head on XCiT.
_base_ = './segmentor_xcit.py'

model = dict(
    decode_head=dict(
        type='SegformerHead',
        in_channels=[384] * 4,
        in_index=[0, 1, 2, 3],
        channels=256,
        dropout_ratio=0.1,
        num_classes=150,
        norm_cfg=dict(type='SyncBN'),
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0)))
