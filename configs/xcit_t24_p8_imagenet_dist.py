# XCiT tiny 24, patch 8, ImageNet-1k, from random weights, distilled from a RegNetY-16GF.
# Published by the authors, not measured here: top-1 82.6.
_base_ = '_base_/xcit_imagenet_dist.py'
model = dict(backbone=dict(arch='tiny_24_p8', drop_path_rate=0.05))
