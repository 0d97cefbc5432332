# A small Mask R-CNN on XCiT nano 12, patch 16, for any objects with masks. It trains from random weights in minutes
# on a CPU. It uses the same code as the full configs; only sizes differ. Class names come from the data.
_base_ = '_base_/maskrcnn_xcit_coco.py'
classes_from_data = True

scale = (192, 192)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
    dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=8, dataset=dict(filter_cfg=dict(filter_empty_gt=True, min_size=8), pipeline=train_pipeline))
val_dataloader = dict(batch_size=8, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

model = dict(
    backbone=dict(arch='nano_12_p16'),
    neck=dict(in_channels=[128] * 4, out_channels=64),
    rpn_head=dict(in_channels=64, feat_channels=64, anchor_generator=dict(scales=[6])),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=64, roi_layer=dict(sampling_ratio=2)),
        bbox_head=dict(in_channels=64, fc_out_channels=256),
        mask_roi_extractor=dict(out_channels=64, roi_layer=dict(sampling_ratio=2)),
        mask_head=dict(num_convs=2, in_channels=64, conv_out_channels=64)),
    train_cfg=dict(
        rpn=dict(sampler=dict(num=128)),
        rpn_proposal=dict(nms_pre=300, max_per_img=100),
        rcnn=dict(sampler=dict(num=32))),
    test_cfg=dict(rpn=dict(nms_pre=300, max_per_img=100), rcnn=dict(max_per_img=50)))

max_epochs = 6
train_cfg = dict(max_epochs=max_epochs, val_interval=1)
optim_wrapper = dict(optimizer=dict(lr=1e-3), clip_grad=dict(max_norm=5.))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=max_epochs, eta_min=1e-6),
]
auto_scale_lr = dict(base_batch_size=8)
default_hooks = dict(logger=dict(interval=10), checkpoint=dict(interval=1, max_keep_ckpts=2))
