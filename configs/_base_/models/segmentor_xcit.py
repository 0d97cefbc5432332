# Shared by all segmentors on XCiT.
model = dict(
    type='LowMemoryEncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512)),
    backbone=dict(type='XCiT', arch='small_12_p16'),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'))
