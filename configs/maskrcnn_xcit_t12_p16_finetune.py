# Mask R-CNN on XCiT tiny 12, patch 16, fine-tuned on your own data set in COCO's layout from the authors'
# weights for COCO: --data-root DIR is all it needs. --init-from FILE starts from another model of this size,
# --no-pretrained from random weights.
_base_ = '_base_/maskrcnn_xcit_finetune.py'
init_from = 'xcit://maskrcnn_tiny_12_p16'
model = dict(
    backbone=dict(arch='tiny_12_p16'),
    neck=dict(in_channels=[192] * 4))
