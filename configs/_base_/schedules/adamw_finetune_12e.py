# Fine-tuning of a whole detector that knows other classes: a third of the epochs (12, not 36) and half the rate (5e-5,
# not 1e-4, for 16 images a step) of the authors' recipe, and 100 iterations of warm-up, not 500. With fewer than
# 67 images that is more than a quarter of the run, which the start block says. Rates that shrink with the depth
# (LayerDecayConstructor) did not help where that was measured.
_base_ = './adamw_3x.py'

train_cfg = dict(max_epochs=12)
optim_wrapper = dict(
    optimizer=dict(lr=5e-5),
    clip_grad=dict(max_norm=5.))  # new last layers begin with large gradients
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=12, eta_min=1e-6),
]
