auto_scale_lr = dict(base_batch_size=8, enable=False)
classes_from_data = True
crop_size = (
    160,
    160,
)
custom_imports = dict(
    allow_failed_imports=False,
    imports=[
        'xcit_dense',
        'xcit_dense.engine.segmentation',
    ])
data_root = 'demo'
default_hooks = dict(
    checkpoint=dict(
        by_epoch=False,
        interval=2,
        max_keep_ckpts=2,
        type='DenseCheckpointHook'),
    logger=dict(interval=1, log_metric_by_epoch=False, type='LoggerHook'),
    param_scheduler=dict(type='ParamSchedulerHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    startup=dict(type='StartupHook'),
    timer=dict(type='IterTimerHook'),
    visualization=dict(type='SegDrawingHook'))
default_scope = 'mmseg'
env_cfg = dict(
    cudnn_benchmark=False,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
launcher = 'none'
load_from = None
log_level = 'INFO'
log_processor = dict(by_epoch=False, type='LogProcessor', window_size=50)
max_iters = 700
model = dict(
    backbone=dict(
        arch=dict(
            depth=4, embed_dims=8, num_heads=2, out_indices=(
                0,
                1,
                2,
                3,
            )),
        type='XCiT'),
    data_preprocessor=dict(
        bgr_to_rgb=True,
        mean=[
            123.675,
            116.28,
            103.53,
        ],
        pad_val=0,
        seg_pad_val=255,
        size=(
            160,
            160,
        ),
        std=[
            58.395,
            57.12,
            57.375,
        ],
        type='SegDataPreProcessor'),
    decode_head=dict(
        align_corners=False,
        channels=8,
        dropout_ratio=0.1,
        feature_strides=[
            4,
            8,
            16,
            32,
        ],
        in_channels=[
            8,
            8,
            8,
            8,
        ],
        in_index=[
            0,
            1,
            2,
            3,
        ],
        loss_decode=dict(
            loss_weight=1.0, type='CrossEntropyLoss', use_sigmoid=False),
        norm_cfg=dict(type='SyncBN'),
        num_classes=6,
        type='FPNHead'),
    neck=dict(
        in_channels=[
            8,
            8,
            8,
            8,
        ], num_outs=4, out_channels=8, type='FPN'),
    test_cfg=dict(mode='whole'),
    train_cfg=dict(),
    type='LowMemoryEncoderDecoder')
optim_wrapper = dict(
    clip_grad=dict(max_norm=5.0),
    optimizer=dict(
        betas=(
            0.9,
            0.999,
        ), lr=0.002, type='AdamW', weight_decay=0.01),
    paramwise_cfg=dict(custom_keys=dict(norm=dict(decay_mult=0.0))),
    type='OptimWrapper')
param_scheduler = [
    dict(begin=0, by_epoch=False, end=50, start_factor=0.01, type='LinearLR'),
    dict(
        begin=0,
        by_epoch=False,
        end=700,
        eta_min=1e-06,
        type='CosineAnnealingLR'),
]
randomness = dict(seed=1)
resume = False
runner_type = 'DenseRunner'
scale = (
    192,
    192,
)
test_cfg = dict(type='TestLoop')
test_dataloader = dict(
    batch_size=1,
    dataset=dict(
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        data_root='demo',
        metainfo=dict(
            classes=(
                'background',
                'disc',
                'square',
                'triangle',
                'star',
                'cross',
            ),
            palette=[
                (
                    90,
                    90,
                    90,
                ),
                (
                    36,
                    96,
                    242,
                ),
                (
                    157,
                    242,
                    36,
                ),
                (
                    242,
                    36,
                    217,
                ),
                (
                    36,
                    242,
                    208,
                ),
                (
                    242,
                    148,
                    36,
                ),
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                192,
                192,
            ), type='Resize'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=False,
        type='ImageFolderDataset'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(keep_ratio=True, scale=(
        192,
        192,
    ), type='Resize'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_cfg = dict(max_iters=2, type='DenseIterLoop', val_interval=2)
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        data_root='demo',
        metainfo=dict(
            classes=(
                'background',
                'disc',
                'square',
                'triangle',
                'star',
                'cross',
            ),
            palette=[
                (
                    90,
                    90,
                    90,
                ),
                (
                    36,
                    96,
                    242,
                ),
                (
                    157,
                    242,
                    36,
                ),
                (
                    242,
                    36,
                    217,
                ),
                (
                    36,
                    242,
                    208,
                ),
                (
                    242,
                    148,
                    36,
                ),
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(
                keep_ratio=True,
                ratio_range=(
                    0.8,
                    1.5,
                ),
                scale=(
                    192,
                    192,
                ),
                type='RandomResize'),
            dict(cat_max_ratio=0.9, crop_size=(
                160,
                160,
            ), type='RandomCrop'),
            dict(prob=0.5, type='RandomFlip'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=False,
        type='ImageFolderDataset'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=True, type='InfiniteSampler'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        keep_ratio=True,
        ratio_range=(
            0.8,
            1.5,
        ),
        scale=(
            192,
            192,
        ),
        type='RandomResize'),
    dict(cat_max_ratio=0.9, crop_size=(
        160,
        160,
    ), type='RandomCrop'),
    dict(prob=0.5, type='RandomFlip'),
    dict(type='PackSegInputs'),
]
val_cfg = dict(type='ValLoop')
val_dataloader = dict(
    batch_size=1,
    dataset=dict(
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        data_root='demo',
        metainfo=dict(
            classes=(
                'background',
                'disc',
                'square',
                'triangle',
                'star',
                'cross',
            ),
            palette=[
                (
                    90,
                    90,
                    90,
                ),
                (
                    36,
                    96,
                    242,
                ),
                (
                    157,
                    242,
                    36,
                ),
                (
                    242,
                    36,
                    217,
                ),
                (
                    36,
                    242,
                    208,
                ),
                (
                    242,
                    148,
                    36,
                ),
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                192,
                192,
            ), type='Resize'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=False,
        type='ImageFolderDataset'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
visualizer = dict(
    name='visualizer',
    type='SegLocalVisualizer',
    vis_backends=[
        dict(type='DenseVisBackend'),
    ])
work_dir = 'run2'
