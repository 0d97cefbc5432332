# The authors' recipe: XCiT as a classifier, ImageNet-1k, 400 epochs from random weights.
_base_ = [
    './models/xcit_classifier.py', './datasets/imagenet.py', './schedules/adamw_imagenet_400e.py',
    './mmpretrain_runtime.py'
]
