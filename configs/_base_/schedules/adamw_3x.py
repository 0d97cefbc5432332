# The authors' 3x schedule for COCO: 36 epochs, batch size 16. They train in mixed fp16: use --amp.
train_cfg = dict(type='DenseEpochLoop', max_epochs=36, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    # no decay for parameters with 'norm' in their names: the layer norms of the blocks. Batch norms, gammas,
    # temperature and biases decay, as in the authors' runs.
    paramwise_cfg=dict(custom_keys=dict(norm=dict(decay_mult=0.))))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=36, milestones=[27, 33], gamma=0.1),
]
auto_scale_lr = dict(enable=False, base_batch_size=16)  # 8 GPUs x 2 images
