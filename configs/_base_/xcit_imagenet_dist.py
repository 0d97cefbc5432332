# The authors' recipe with a teacher: that of xcit_imagenet.py, and half of the loss is the cross-entropy with the class
# that a RegNetY-16GF gives the highest score, as in DeiT. With soft labels: --cfg-options model.distillation=soft
_base_ = './xcit_imagenet.py'
model = dict(
    type='DistilledClassifier',
    distillation='hard',
    alpha=0.5,
    teacher=dict(
        library='timm',
        name='regnety_160.deit_in1k',
        checkpoint='https://dl.fbaipublicfiles.com/deit/regnety_160-a5fe301d.pth'))
custom_hooks = [dict(type='TeacherHook'), *_base_.custom_hooks]
