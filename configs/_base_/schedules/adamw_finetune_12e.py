# Fine-tuning of a whole detector that knows other classes: a third of the epochs and half the rate of the authors'
# recipe. Rates that shrink with the depth (LayerDecayConstructor) did not help where that was measured.
_base_ = './adamw_3x.py'

train_cfg = dict(max_epochs=12)
optim_wrapper = dict(
    optimizer=dict(lr=5e-5),
    clip_grad=dict(max_norm=5.))  # new last layers begin with large gradients
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=12, eta_min=1e-6),
]
