# Fine-tuning of a classifier from ImageNet weights: short, and with a small learning rate. XCiT needs one near 3e-5;
# the higher rates that suit a ResNet destroy what the weights have learned.
train_cfg = dict(type='DenseEpochLoop', max_epochs=30, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=3e-5, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.05),
    paramwise_cfg=dict(
        flat_decay_mult=0., custom_keys=dict(cls_token=dict(decay_mult=0.), temperature=dict(decay_mult=0.))))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-7, by_epoch=True, begin=0, end=30, convert_to_iter_based=True),
]
auto_scale_lr = dict(enable=False, base_batch_size=64)
