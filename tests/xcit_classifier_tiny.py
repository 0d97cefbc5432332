# The small classifier cut down for the tests to 2 blocks of 32 channels; it draws and averages as that of ImageNet.
_base_ = '../configs/xcit_n12_p8_small.py'
classes_from_data = False

size = 32
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=size, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='RandAugment', policies='timm_increasing', num_policies=2, magnitude_level=9, magnitude_std=0.5),
    dict(type='RandomErasing', erase_prob=0.25, mode='rand'),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=size, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=size),
    dict(type='PackInputs'),
]
model = dict(
    backbone=dict(
        num_classes=3, arch=dict(_delete_=True, embed_dims=32, depth=2, num_heads=4, patch_size=8, tokens_norm=False)),
    data_preprocessor=dict(num_classes=3),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
train_dataloader = dict(
    batch_size=4, num_workers=0, persistent_workers=False, sampler=dict(_delete_=True, type='RepeatAugSampler'),
    dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(num_workers=0, persistent_workers=False, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=2)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=2)]
val_evaluator = dict(topk=(1, 2))
test_evaluator = val_evaluator
custom_hooks = [dict(type='AverageHook', momentum=0.1, update_buffers=True)]
default_hooks = dict(logger=dict(interval=1))
