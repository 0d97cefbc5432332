# Semantic FPN on XCiT small 12, patch 16, for your own images and label maps: --data-root DIR is all it needs. For
# layouts see docs/own_data.md. The recipe is that for ADE20k, but a quarter as long.
_base_ = [
    '_base_/models/semfpn_xcit.py', '_base_/datasets/image_folders.py', '_base_/schedules/adamw_poly_80k.py',
    '_base_/mmseg_runtime.py'
]
max_iters = 20000
train_cfg = dict(max_iters=max_iters, val_interval=2000)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=max_iters),
]
default_hooks = dict(checkpoint=dict(interval=2000))
model = dict(
    backbone=dict(
        drop_path_rate=0.05, init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist')))
