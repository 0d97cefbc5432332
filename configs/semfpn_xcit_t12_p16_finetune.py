# Semantic FPN on XCiT tiny 12, patch 16, fine-tuned on your own images and label maps from the authors' weights for
# ADE20k: --data-root DIR is all it needs. --init-from FILE starts from another model of this size, --no-pretrained from
# random weights.
_base_ = '_base_/semfpn_xcit_finetune.py'
init_from = 'xcit://semfpn_tiny_12_p16'
model = dict(
    backbone=dict(arch='tiny_12_p16'),
    neck=dict(in_channels=[192] * 4, out_channels=192),
    decode_head=dict(in_channels=[192] * 4))
