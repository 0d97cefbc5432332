# The authors' recipe: XCiT as a classifier, ImageNet-1k, 400 epochs from random weights.
_base_ = [
    './models/xcit_classifier.py', './datasets/imagenet.py', './schedules/adamw_imagenet_400e.py',
    './mmpretrain_runtime.py'
]
# every batch is mixed by one of the two, with equal probability
model = dict(train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))
