# XCiT small 12, patch 16, ImageNet-1k, from random weights, distilled from a RegNetY-160 as in DeiT. To train softly:
# --cfg-options model.distillation=soft. Published by the authors, not measured here: top-1 83.3.
_base_ = './xcit_s12_p16_imagenet.py'
model = dict(
    type='DistilledClassifier',
    distillation='hard',
    alpha=0.5,
    teacher=dict(
        library='timm',
        name='regnety_160',
        checkpoint='https://dl.fbaipublicfiles.com/deit/regnety_160-a5fe301d.pth'))
custom_hooks = [dict(type='TeacherHook'), *_base_.custom_hooks]
