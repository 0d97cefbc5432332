# Mask R-CNN on XCiT small 12, patch 16, fine-tuned on your own data set in COCO's layout from the authors'
# weights for COCO: --data-root DIR is all it needs. --init-from FILE starts from another model of this size,
# --no-pretrained from random weights.
_base_ = '_base_/maskrcnn_xcit_finetune.py'
init_from = 'xcit://maskrcnn_small_12_p16'
model = dict(
    backbone=dict(arch='small_12_p16', drop_path_rate=0.05),
    neck=dict(in_channels=[384] * 4))
