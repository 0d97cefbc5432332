# The authors' schedule for ADE20k with Semantic FPN: 80,000 iterations, batch size 16, float32.
train_cfg = dict(type='DenseIterLoop', max_iters=80000, val_interval=8000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    # no decay for parameters with 'norm' in their names: the layer norms of the blocks, as in the authors' runs
    paramwise_cfg=dict(custom_keys=dict(norm=dict(decay_mult=0.))))
# both begin at 0: the warm-up is a factor on the polynomial
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=80000),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)  # 8 GPUs x 2 images
