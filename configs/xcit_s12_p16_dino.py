# XCiT small 12, patch 16, on images without labels (DINO): --data-root DIR is all it needs, any folder of images. The
# checkpoint holds student and teacher; the teacher starts a detector, a segmentor or a classifier by init_cfg.
# Published by the authors for ImageNet, not measured here: top-1 77.8 (linear), 76.0 (k-NN).
_base_ = [
    '_base_/models/xcit_dino.py', '_base_/datasets/unlabelled_images.py', '_base_/schedules/adamw_dino_300e.py',
    '_base_/mmpretrain_runtime.py'
]
model = dict(backbone=dict(arch='small_12_p16', drop_path_rate=0.1))
