# XCiT with DINO's projection head, as student and as teacher. A leaf config sets the arch and the rate of stochastic
# depth of the student.
model = dict(
    type='DINO',
    data_preprocessor=dict(
        type='SelfSupDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True),
    backbone=dict(type='XCiTClassifier', arch='small_12_p16', num_classes=0),
    head=dict(type='DINOHead', num_prototypes=65_536))
