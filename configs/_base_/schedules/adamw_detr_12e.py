# mmdet's schedule of 12 epochs for DINO. Beyond it, as in XCiT's own recipes and in mmdet's for Swin, the layer norms
# of the backbone do not decay.
train_cfg = dict(type='DenseEpochLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

_norms = [f'norm{number}.{part}' for number in (1, 2, 3) for part in ('weight', 'bias')]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
    clip_grad=dict(max_norm=0.1, norm_type=2),
    paramwise_cfg=dict(
        custom_keys={
            'backbone': dict(lr_mult=0.1),
            # the longest key counts
            **dict.fromkeys(_norms, dict(lr_mult=0.1, decay_mult=0.))
        }))
param_scheduler = [dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[11], gamma=0.1)]
auto_scale_lr = dict(enable=False, base_batch_size=16)  # 8 GPUs x 2 images
