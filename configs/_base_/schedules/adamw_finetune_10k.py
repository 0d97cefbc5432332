# Fine-tuning of a whole segmentor that knows other classes: an eighth of the iterations (10,000, not 80,000) and half
# the rate (3e-5, not 6e-5, for 16 images a step) of the authors' recipe, and 200 iterations of warm-up, not 1,500.
# Rates that shrink with the depth are as in adamw_finetune_12e.py.
_base_ = './adamw_poly_80k.py'

train_cfg = dict(max_iters=10000, val_interval=1000)
optim_wrapper = dict(
    optimizer=dict(lr=3e-5),
    clip_grad=dict(max_norm=5.))  # a new last layer begins with large gradients
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(type='PolyLR', power=1.0, eta_min=0., by_epoch=False, begin=0, end=10000),
]
