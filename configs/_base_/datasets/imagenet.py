# ImageNet-1k: train/WNID/*.JPEG and val/WNID/*.JPEG; or all images of a split in one folder, with a list of file names
# and class numbers in meta/train.txt and meta/val.txt.
data_root = 'data/imagenet/'

# of ImageNet, in the order in which the channels are read: blue, green, red
bgr_mean = [103.53, 116.28, 123.675]
bgr_std = [57.375, 57.12, 58.395]

# No colour jitter: the release sets 0.4 in timm, but timm ignores it when RandAugment is on.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    # timm's rand-m9-mstd0.5-inc1
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        magnitude_level=9,
        magnitude_std=0.5,
        total_level=10,
        hparams=dict(pad_val=[round(x) for x in bgr_mean], interpolation='bicubic')),
    # timm's mode "pixel": each pixel is drawn from a normal distribution; here as whole numbers from 0 to 255
    dict(
        type='RandomErasing',
        erase_prob=0.25,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=bgr_mean,
        fill_std=bgr_std),
    dict(type='PackInputs'),
]
# the whole shorter side is seen (crop ratio 1.0), as for the published figures
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=224, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]

train_dataloader = dict(
    batch_size=128,  # per GPU; 8 GPUs make the 1,024 of auto_scale_lr.base_batch_size
    num_workers=8,
    persistent_workers=True,
    drop_last=True,
    # repeated augmentation: an epoch has three versions of a third of the images
    sampler=dict(type='RepeatAugSampler', shuffle=True, num_repeats=3),
    dataset=dict(
        type='ImageNet',
        data_root=data_root,
        split='train',
        data_prefix=dict(img_path='train'),
        pipeline=train_pipeline))
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='ImageNet',
        data_root=data_root,
        split='val',
        data_prefix=dict(img_path='val'),
        pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
