# Shared by all runs, for every framework and task.
custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmdet'], allow_failed_imports=False)
runner_type = 'DenseRunner'  # safe and strict loading, see xcit_dense/train/runner.py

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='DenseCheckpointHook', interval=1, max_keep_ckpts=3),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    startup=dict(type='StartupHook'),
    ending=dict(type='EndingHook'))
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
log_level = 'INFO'

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    dist_cfg=dict(backend='nccl'))

load_from = None
resume = False
