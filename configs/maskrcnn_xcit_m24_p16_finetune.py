# Mask R-CNN on XCiT medium 24, patch 16, fine-tuned on your own data set in COCO's layout from the authors'
# weights for COCO: --data-root DIR is all it needs. --init-from FILE starts from another model of this size,
# --no-pretrained from random weights.
_base_ = '_base_/maskrcnn_xcit_finetune.py'
init_from = 'xcit://maskrcnn_medium_24_p16'
model = dict(
    backbone=dict(arch='medium_24_p16', drop_path_rate=0.15),
    neck=dict(in_channels=[512] * 4))
