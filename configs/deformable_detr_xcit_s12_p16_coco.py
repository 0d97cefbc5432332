# Deformable DETR on XCiT small 12, patch 16, COCO 2017 boxes, from ImageNet weights.
# No result is published, and none is measured here.
_base_ = [
    '_base_/models/deformable_detr_xcit.py', '_base_/datasets/coco_detr.py', '_base_/schedules/adamw_detr_12e.py',
    '_base_/mmdet_runtime.py'
]
model = dict(
    backbone=dict(
        drop_path_rate=0.05, init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist')))

# mmdet's schedule for Deformable DETR: 50 epochs, batch size 32
train_cfg = dict(max_epochs=50)
optim_wrapper = dict(
    optimizer=dict(lr=2e-4),
    paramwise_cfg=dict(custom_keys=dict(sampling_offsets=dict(lr_mult=0.1), reference_points=dict(lr_mult=0.1))))
param_scheduler = [dict(type='MultiStepLR', by_epoch=True, begin=0, end=50, milestones=[40], gamma=0.1)]
auto_scale_lr = dict(base_batch_size=32)  # 16 GPUs x 2 images
