# Shared by all detectors on XCiT. A leaf config sets the arch, its drop_path_rate, and neck.in_channels.
model = dict(
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_mask=True,
        pad_size_divisor=32),
    backbone=dict(type='XCiT', arch='small_12_p16'),
    neck=dict(type='FPN', in_channels=[384] * 4, out_channels=256, num_outs=5))
