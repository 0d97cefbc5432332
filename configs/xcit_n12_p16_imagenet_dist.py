# XCiT nano 12, patch 16, ImageNet-1k, from random weights, distilled from a RegNetY-16GF.
# Published by the authors, not measured here: top-1 72.2.
_base_ = '_base_/xcit_imagenet_dist.py'
model = dict(backbone=dict(arch='nano_12_p16'))
