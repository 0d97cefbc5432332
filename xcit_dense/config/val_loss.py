"""Measure the losses on the validation data too."""
import copy

from mmengine.config import Config

from ..data.datasets import LOADERS, datasets
from ..data.pipelines import loads_like_training
from ..errors import ConfigError
from ..text import type_name
from .framework import framework_of
from .options import add_hook


def set_val_loss(cfg: Config):
    """Measure the losses on the validation data too, as ``--val-loss`` asks.

    Raises:
        ConfigError: The config has no validation.
    """
    loss_dataloader(cfg)
    if not any(type_name(hook.get('type')) == 'ValLossHook' for hook in cfg.get('custom_hooks') or ()):
        add_hook(cfg, 'ValLossHook')


def loss_dataloader(cfg: Config) -> dict:
    """Return the config of a loader of the validation data for losses: the sampler and the batches are missing.

    Its pipelines load the annotations before they resize the image: a loss compares objects and label maps with
    outputs for the resized image, metrics compare them at the original size. A batch is one image, so that losses
    depend neither on the batch size nor on the number of processes. Only a classifier keeps its batches, as its loss is
    a mean over images anyway.

    Raises:
        ConfigError: The config has no validation.
    """
    loader = cfg.get(LOADERS[1])
    if not loader or cfg.get('val_cfg') is None:
        raise ConfigError('--val-loss needs validation, and this config has none: set val_dataloader, val_evaluator '
                          'and val_cfg, or omit --val-loss')
    loader = copy.deepcopy(dict(loader))
    trained = datasets(cfg, LOADERS[:1])
    for dataset in datasets({LOADERS[1]: loader}, LOADERS[1:2]):
        if dataset.get('pipeline'):
            dataset['pipeline'] = loads_like_training(dataset, trained)
    if framework_of(cfg) != 'mmpretrain':
        if loader.get('num_batch_per_epoch'):
            loader['num_batch_per_epoch'] *= loader.get('batch_size', 1)
        loader['batch_size'] = 1
    for key in ('sampler', 'batch_sampler', 'persistent_workers', 'drop_last'):
        loader.pop(key, None)
    return loader
