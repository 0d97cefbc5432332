# A small Mask2Former for classes of pixels on XCiT nano 12, patch 16, for any images and label maps. It trains from
# random weights on a CPU, with the code of the full config; only sizes differ. Class names come from the data.
_base_ = ['_base_/models/mask2former_segmentor_xcit.py', '_base_/small_image_folders.py']

custom_imports = dict(
    imports=['xcit_dense', 'xcit_dense.for_mmseg', 'mmdet.models'], allow_failed_imports=False)
width = 64
_attention = dict(embed_dims=width)
_ffn = dict(embed_dims=width, feedforward_channels=256)
model = dict(
    data_preprocessor=dict(size=_base_.crop_size),
    backbone=dict(arch='nano_12_p16'),
    decode_head=dict(
        in_channels=[128] * 4,
        feat_channels=width,
        out_channels=width,
        num_queries=30,
        pixel_decoder=dict(
            encoder=dict(num_layers=2, layer_cfg=dict(self_attn_cfg=_attention, ffn_cfg=_ffn)),
            positional_encoding=dict(num_feats=width // 2)),
        positional_encoding=dict(num_feats=width // 2),
        transformer_decoder=dict(
            num_layers=3, layer_cfg=dict(self_attn_cfg=_attention, cross_attn_cfg=_attention, ffn_cfg=_ffn)),
        train_cfg=dict(num_points=1024)))
optim_wrapper = dict(optimizer=dict(lr=4e-4))
