# A small DINO: XCiT nano 12, patch 16, at 64 and 32 pixels, for any folder of images: it learns within minutes on a CPU
# (docs/self_supervision.md). It uses the same code as the full config. For few images and steps, the head has batch
# norms and few prototypes, and the teacher is sharper and moves faster.
_base_ = [
    '_base_/models/xcit_dino.py', '_base_/datasets/unlabelled_images.py', '_base_/schedules/adamw_dino_300e.py',
    '_base_/mmpretrain_runtime.py'
]
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='MultiCrop', global_size=64, local_size=32, num_local=4, global_ratio=(0.4, 1.0), local_ratio=(0.1, 0.4),
         blurs=False),
    dict(type='PackInputs'),
]
train_dataloader = dict(batch_size=32, num_workers=2, dataset=dict(pipeline=train_pipeline))

model = dict(
    backbone=dict(arch='nano_12_p16'), head=dict(num_prototypes=64, hidden_channels=256, batch_norm=True))

max_epochs = 20
train_cfg = dict(max_epochs=max_epochs)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=True, begin=2, end=max_epochs, convert_to_iter_based=True),
]
auto_scale_lr = dict(base_batch_size=32)
custom_hooks = [
    dict(type='DINOHook', momentum=(0.95, 1.), teacher_temperature=(0.03, 0.03), warmup=0, freeze_last_layer=1),
]
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=1, max_keep_ckpts=2))
