# Mask R-CNN on XCiT small 12, patch 16, for your own objects with masks: --data-root DIR is all it needs. For layouts
# see docs/own_data.md; the classes are the categories of the training annotations. The recipe is that for COCO, but a
# third as long.
_base_ = './maskrcnn_xcit_s12_p16_coco.py'
classes_from_data = True

train_cfg = dict(max_epochs=12)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', by_epoch=True, begin=0, end=12, milestones=[8, 11], gamma=0.1),
]
