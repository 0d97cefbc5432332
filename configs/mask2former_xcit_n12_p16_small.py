# A small Mask2Former on XCiT nano 12, patch 16, for any objects with masks. It trains from random weights on a CPU,
# with the code of the full config; only sizes differ. Class names come from the data.
_base_ = ['_base_/models/mask2former_xcit.py', '_base_/small_coco.py']

width = 64
_attention = dict(embed_dims=width)
_ffn = dict(embed_dims=width, feedforward_channels=256)
model = dict(
    data_preprocessor=dict(batch_augments=None),
    backbone=dict(arch='nano_12_p16'),
    panoptic_head=dict(
        in_channels=[128] * 4,
        feat_channels=width,
        out_channels=width,
        num_queries=30,
        pixel_decoder=dict(
            encoder=dict(num_layers=2, layer_cfg=dict(self_attn_cfg=_attention, ffn_cfg=_ffn)),
            positional_encoding=dict(num_feats=width // 2)),
        positional_encoding=dict(num_feats=width // 2),
        transformer_decoder=dict(
            num_layers=3, layer_cfg=dict(self_attn_cfg=_attention, cross_attn_cfg=_attention, ffn_cfg=_ffn))),
    train_cfg=dict(num_points=1024),
    test_cfg=dict(max_per_image=30))

max_epochs = 16  # it learns more slowly than a detector with anchors
train_cfg = dict(max_epochs=max_epochs, val_interval=4)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=max_epochs, eta_min=1e-6),
]
