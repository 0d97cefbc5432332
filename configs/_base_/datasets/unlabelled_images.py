# All images in a folder and its subfolders, without labels, in the views that DINO compares. Label maps, and images for
# validation or test beside those for training, are left out; the log says which (left_out sets it).
data_root = 'data/images/'
train_dataloader = dict(
    batch_size=64,  # per GPU; 16 GPUs make the 1,024 of auto_scale_lr.base_batch_size
    num_workers=8,
    persistent_workers=True,
    drop_last=True,
    collate_fn=dict(type='default_collate'),
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='UnlabelledImages',
        data_root=data_root,
        left_out=None,
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='MultiCrop', global_size=224, local_size=96, num_local=10),
            dict(type='PackInputs'),
        ]))
