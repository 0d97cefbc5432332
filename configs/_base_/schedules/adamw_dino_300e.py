# DINO's schedule: 300 epochs, batch size 1,024. The authors train in mixed fp16: use --amp.
train_cfg = dict(type='DenseEpochLoop', max_epochs=300)

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4 * 1024 / 256, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.04),
    clip_grad=dict(max_norm=3.),  # of each parameter by itself, see DINOHook
    paramwise_cfg=dict(flat_decay_mult=0.))  # no decay for vectors: norms, biases, the gammas of LayerScale
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-6, by_epoch=True, begin=10, end=300, convert_to_iter_based=True),
    # a ratio, so that no decay stays none: from 0.04 to 0.4
    dict(
        type='CosineAnnealingParamScheduler',
        param_name='weight_decay',
        eta_min_ratio=10.,
        by_epoch=True,
        begin=0,
        end=300,
        convert_to_iter_based=True),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)  # 16 GPUs x 64 images

custom_hooks = [
    dict(type='DINOHook', momentum=(0.996, 1.), teacher_temperature=(0.04, 0.07), warmup=30, freeze_last_layer=1),
]
