# COCO 2017 with masks, and large-scale jittering (Ghiasi et al. 2021) as in mmdet's configs for Mask2Former.
_base_ = './coco_instance.py'

size = (1024, 1024)
train_pipeline = [
    dict(type='LoadImageFromFile', to_float32=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomResize', scale=size, ratio_range=(0.1, 2.0), resize_type='Resize', keep_ratio=True),
    dict(
        type='RandomCrop',
        crop_size=size,
        crop_type='absolute',
        recompute_bbox=True,
        allow_negative_crop=True),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1e-5, 1e-5), by_mask=True),
    dict(type='PackDetInputs'),
]
test_pipeline = [dict(type='LoadImageFromFile', to_float32=True), *_base_.test_pipeline[1:]]
train_dataloader = dict(
    sampler=dict(type='InfiniteSampler', shuffle=True), dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
