# XCiT tiny 12, patch 8, ImageNet-1k, from random weights, distilled from a RegNetY-16GF.
# Published by the authors, not measured here: top-1 81.2.
_base_ = '_base_/xcit_imagenet_dist.py'
model = dict(backbone=dict(arch='tiny_12_p8'))
