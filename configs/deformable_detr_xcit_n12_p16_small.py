# A small Deformable DETR on XCiT nano 12, patch 16, for any objects with boxes. It trains from random weights on a CPU,
# with the code of the full config; only sizes differ (the width of 256 is fixed in mmdet), and it is the variant with
# refined boxes and two stages, which learns sooner. Class names come from the data.
_base_ = ['_base_/models/deformable_detr_xcit.py', '_base_/small_coco_boxes.py']

_attention = dict(num_levels=3, num_points=2)
_ffn = dict(feedforward_channels=512, ffn_drop=0.)
model = dict(
    num_queries=50,
    num_feature_levels=3,
    with_box_refine=True,
    as_two_stage=True,
    backbone=dict(arch='nano_12_p16'),
    neck=dict(in_channels=[128] * 3, num_outs=3),
    encoder=dict(num_layers=1, layer_cfg=dict(self_attn_cfg=_attention, ffn_cfg=_ffn)),
    decoder=dict(
        num_layers=2, layer_cfg=dict(self_attn_cfg=dict(dropout=0.), cross_attn_cfg=_attention, ffn_cfg=_ffn)),
    test_cfg=dict(max_per_img=50))

max_epochs = 16  # it learns more slowly than a detector with anchors
train_cfg = dict(max_epochs=max_epochs, val_interval=4)
optim_wrapper = dict(optimizer=dict(lr=4e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=max_epochs, eta_min=1e-6),
]
