# XCiT large 24, patch 16, ImageNet-1k, from random weights, distilled from a RegNetY-16GF.
# Published by the authors, not measured here: top-1 84.9.
_base_ = '_base_/xcit_imagenet_dist.py'
model = dict(backbone=dict(arch='large_24_p16', drop_path_rate=0.2))
