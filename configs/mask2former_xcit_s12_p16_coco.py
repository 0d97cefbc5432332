# Mask2Former on XCiT small 12, patch 16, COCO 2017, from ImageNet weights.
# No result is published, and none is measured here.
_base_ = [
    '_base_/models/mask2former_xcit.py', '_base_/datasets/coco_instance_lsj.py',
    '_base_/schedules/adamw_mask2former_160k.py', '_base_/mmdet_runtime.py'
]
model = dict(
    backbone=dict(
        drop_path_rate=0.05, init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_384_dist')))

# mmdet's schedule for Mask2Former on COCO: 50 epochs of 7,375 iterations
train_cfg = dict(max_iters=368750, dynamic_intervals=[(365001, 368750)])  # a last validation at the end
param_scheduler = [
    dict(type='MultiStepLR', by_epoch=False, begin=0, end=368750, milestones=[327778, 355092], gamma=0.1)
]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=5000))
log_processor = dict(by_epoch=False)
