# Fine-tuning of a whole segmentor that was trained on other classes. Compared with the authors' recipe:
# - an eighth of the iterations (10,000 instead of 80,000)
# - half the learning rate (3e-5 instead of 6e-5, for 16 images per step)
# - 200 iterations of warm-up instead of 1,500
_base_ = './adamw_poly_80k.py'

train_cfg = dict(max_iters=10000, val_interval=1000)
optim_wrapper = dict(
    optimizer=dict(lr=3e-5),
    clip_grad=dict(max_norm=5.))  # a new last layer starts with large gradients
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=10000),
]
