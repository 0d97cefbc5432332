# XCiT as a classifier. A leaf gives the arch and its drop_path_rate.
# The release names the rate of small 12, 0.05; the others are those of the authors' dense recipes, and that of
# large 24, of which there is none, is that of the dense configs here.
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(
        type='ClsDataPreprocessor',
        num_classes=1000,  # mixed labels are vectors
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        to_rgb=True),
    backbone=dict(type='XCiTClassifier', arch='small_12_p16', num_classes=1000),
    # smooths labels after they are mixed; timm does it before, which is the same, for mixing is linear
    head=dict(type='LogitsHead', loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')))
