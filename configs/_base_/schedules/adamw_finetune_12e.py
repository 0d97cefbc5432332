# Fine-tuning of a whole detector that was trained on other classes. Compared with the authors' recipe:
# - a third of the epochs (12 instead of 36)
# - half the learning rate (5e-5 instead of 1e-4, for 16 images per step)
# - 100 iterations of warm-up instead of 500; with fewer than 67 images this is more than a quarter of the run, and the
#   log warns about it
_base_ = './adamw_3x.py'

train_cfg = dict(max_epochs=12)
optim_wrapper = dict(
    optimizer=dict(lr=5e-5),
    clip_grad=dict(max_norm=5.))  # new last layers start with large gradients
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=100),
    dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True, begin=0, end=12, eta_min=1e-6),
]
