# The authors' schedule for ImageNet: 400 epochs, batch size 1,024. They train in mixed fp16: use --amp.
train_cfg = dict(type='DenseEpochLoop', max_epochs=400, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4 * 1024 / 512, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    # no decay for vectors, as in timm: norms, biases, the gammas of LayerScale
    paramwise_cfg=dict(
        flat_decay_mult=0., custom_keys=dict(cls_token=dict(decay_mult=0.), temperature=dict(decay_mult=0.))))
# both begin at 0: the warm-up is a factor on the cosine, which is constant within an epoch
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),  # from 1e-6
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=0, end=400, T_max=400),
]
auto_scale_lr = dict(enable=False, base_batch_size=1024)  # 8 GPUs x 128 images

# moving average with decay 0.99996: saved in every checkpoint next to the model; the model itself is evaluated
custom_hooks = [dict(type='AverageHook', momentum=4e-5, update_buffers=True)]
