# XCiT small 12, patch 16, fine-tuned on your own images: --data-root DIR is all it needs. For the layout see
# _base_/datasets/class_folders.py. It starts from the distilled ImageNet weights for 224 pixels, the size that it
# trains at; the head starts from random weights unless there are 1,000 classes. The schedule is
# _base_/schedules/adamw_finetune_30e.py: 30 epochs with a learning rate of 3e-5.
_base_ = [
    '_base_/models/xcit_classifier.py', '_base_/datasets/class_folders.py', '_base_/schedules/adamw_finetune_30e.py',
    '_base_/mmpretrain_runtime.py'
]
model = dict(
    backbone=dict(
        drop_path_rate=0.05, init_cfg=dict(type='Pretrained', checkpoint='xcit://small_12_p16_224_dist')))
