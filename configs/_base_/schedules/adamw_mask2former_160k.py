# mmsegmentation's schedule of 160,000 iterations for Mask2Former, batch size 16. Beyond it, as in XCiT's own recipes
# and in mmdet's for Swin, the layer norms of the backbone do not decay.
train_cfg = dict(type='DenseIterLoop', max_iters=160000, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

_norms = [f'norm{number}.{part}' for number in (1, 2, 3) for part in ('weight', 'bias')]
_queries = dict(lr_mult=1.0, decay_mult=0.0)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05, eps=1e-8, betas=(0.9, 0.999)),
    clip_grad=dict(max_norm=0.01, norm_type=2),
    paramwise_cfg=dict(
        custom_keys={
            'backbone': dict(lr_mult=0.1, decay_mult=1.0),
            'query_embed': _queries,
            'query_feat': _queries,
            'level_embed': _queries,
            # the longest key counts
            **dict.fromkeys(_norms, dict(lr_mult=0.1, decay_mult=0.))
        },
        norm_decay_mult=0.0))
param_scheduler = [dict(type='PolyLR', eta_min=0, power=0.9, begin=0, end=160000, by_epoch=False)]
auto_scale_lr = dict(enable=False, base_batch_size=16)  # 8 GPUs x 2 images
