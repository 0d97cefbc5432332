# Data and schedule of the small segmentors: any images and label maps, small crops, minutes on a CPU. Class names come
# from the data.
_base_ = ['./datasets/image_folders.py', './schedules/adamw_poly_80k.py', './mmseg_runtime.py']

scale = (192, 192)
crop_size = (160, 160)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=scale, ratio_range=(0.8, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.9),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(batch_size=8, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

max_iters = 700
train_cfg = dict(max_iters=max_iters, val_interval=175)
optim_wrapper = dict(optimizer=dict(lr=2e-3), clip_grad=dict(max_norm=5.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=max_iters, eta_min=1e-6),
]
auto_scale_lr = dict(base_batch_size=8)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=175, max_keep_ckpts=2))
