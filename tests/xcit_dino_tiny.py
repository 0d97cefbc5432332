# The small DINO cut down for the tests to 2 blocks of 32 channels, batches of 3, and views of 32 and 16 pixels.
_base_ = '../configs/xcit_n12_p16_dino_small.py'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='MultiCrop', global_size=32, local_size=16, num_local=2),
    dict(type='PackInputs'),
]
train_dataloader = dict(batch_size=3, num_workers=0, persistent_workers=False, dataset=dict(pipeline=train_pipeline))
model = dict(
    backbone=dict(drop_path_rate=0.1, arch=dict(
        _delete_=True, embed_dims=32, depth=2, num_heads=4, patch_size=8, tokens_norm=False)),
    head=dict(num_prototypes=16, hidden_channels=32, bottleneck_channels=8))
train_cfg = dict(max_epochs=3)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=1, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=True, begin=1, end=3, convert_to_iter_based=True),
    dict(type='CosineAnnealingParamScheduler', param_name='weight_decay', eta_min_ratio=10., by_epoch=True, begin=0,
         end=3, convert_to_iter_based=True),
]
custom_hooks = [
    dict(type='DINOHook', momentum=(0.9, 1.), teacher_temperature=(0.04, 0.07), warmup=2, freeze_last_layer=1),
]
default_hooks = dict(logger=dict(interval=1))
