# DINO, the detector (Zhang et al. 2022), not the training without labels, on XCiT. Numbers as in mmdet's
# dino/dino-4scale_r50_8xb2-12e_coco.py.
_base_ = './deformable_detr_xcit.py'

model = dict(
    type='DINO',
    num_queries=900,
    with_box_refine=True,
    as_two_stage=True,
    encoder=dict(
        layer_cfg=dict(
            self_attn_cfg=dict(_delete_=True, embed_dims=256, num_levels=4, dropout=0.0),
            ffn_cfg=dict(feedforward_channels=2048, ffn_drop=0.0))),
    decoder=dict(
        layer_cfg=dict(
            self_attn_cfg=dict(_delete_=True, embed_dims=256, num_heads=8, dropout=0.0),
            cross_attn_cfg=dict(_delete_=True, embed_dims=256, num_levels=4, dropout=0.0),
            ffn_cfg=dict(feedforward_channels=2048, ffn_drop=0.0))),
    positional_encoding=dict(offset=0.0, temperature=20),
    bbox_head=dict(type='DINOHead', loss_cls=dict(loss_weight=1.0)),
    dn_cfg=dict(
        label_noise_scale=0.5,
        box_noise_scale=1.0,
        group_cfg=dict(dynamic=True, num_groups=None, num_dn_queries=100)),
    test_cfg=dict(max_per_img=300))
