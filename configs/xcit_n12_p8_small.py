# A small classifier: XCiT nano 12, patch 8, at 96 pixels, for any data set with a folder for each class. It trains from
# random weights in minutes on a CPU. It uses the same code as the full configs; only sizes differ. For the layout of
# the data see _base_/datasets/class_folders.py. Loops and optimizer are those of fine-tuning, with another learning
# rate and length.
_base_ = [
    '_base_/models/xcit_classifier.py', '_base_/datasets/class_folders.py', '_base_/schedules/adamw_finetune_30e.py',
    '_base_/mmpretrain_runtime.py'
]
size = 96
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=size, crop_ratio_range=(0.6, 1.0), backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=size, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=size),
    dict(type='PackInputs'),
]
train_dataloader = dict(batch_size=16, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(batch_size=32, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

model = dict(backbone=dict(arch='nano_12_p8'))

max_epochs = 6
train_cfg = dict(max_epochs=max_epochs)
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=5.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=max_epochs, eta_min=1e-6),
]
auto_scale_lr = dict(base_batch_size=16)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=1, max_keep_ckpts=2))
