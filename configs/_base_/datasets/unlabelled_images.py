# All images in a folder and its subfolders, without labels, in the views that DINO compares: two global ones of most of
# an image, and local ones of small parts at a lower resolution.
data_root = 'data/images/'
extensions = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm')  # upper or lower case

_crop = dict(type='RandomResizedCrop', backend='pillow', interpolation='bicubic')
_colours = [
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='NumpyToPIL', to_rgb=True),  # mmcv's shift of the hue fails with NumPy 2
    dict(
        type='RandomApply',
        transforms=dict(type='torchvision/ColorJitter', brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1),
        prob=0.8),
    dict(type='PILToNumpy', to_bgr=True),
    dict(type='RandomGrayscale', prob=0.2, keep_channels=True),
]
_blur = dict(type='GaussianBlur', magnitude_range=(0.1, 2.0), magnitude_std='inf')
global_size, local_size = 224, 96
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='MultiView',
        num_views=[1, 1, 10],
        transforms=[
            [dict(_crop, scale=global_size, crop_ratio_range=(0.25, 1.0)), *_colours, dict(_blur, prob=1.0)],
            [dict(_crop, scale=global_size, crop_ratio_range=(0.25, 1.0)), *_colours, dict(_blur, prob=0.1),
             dict(type='Solarize', thr=128, prob=0.2)],
            [dict(_crop, scale=local_size, crop_ratio_range=(0.05, 0.25)), *_colours, dict(_blur, prob=0.5)],
        ]),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=64,  # per GPU; 16 GPUs make the 1,024 of auto_scale_lr.base_batch_size
    num_workers=8,
    persistent_workers=True,
    drop_last=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CustomDataset',
        data_root=data_root,
        data_prefix='',
        with_label=False,
        extensions=extensions,
        pipeline=train_pipeline))
