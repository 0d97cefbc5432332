"""The learning rate in the log, if the rates are scaled with the batch size."""
from contextlib import contextmanager

from mmengine.optim import OptimWrapperDict


@contextmanager
def base_rates_follow(optim_wrapper):
    """Scale ``base_lr`` of an optimizer wrapper, or of several, like the rates that are scaled in the context.

    ``base_lr`` is a copy for the log, which mmengine does not scale.
    """
    wrappers = list(optim_wrapper.values()) if isinstance(optim_wrapper, OptimWrapperDict) else [optim_wrapper]
    before = [[group['lr'] for group in wrapper.optimizer.param_groups] for wrapper in wrappers]
    yield
    for wrapper, rates in zip(wrappers, before, strict=True):
        scale = next((group['lr'] / rate for group, rate in zip(wrapper.optimizer.param_groups, rates, strict=True)
                      if rate), 1.)  # some parts may have the rate 0
        if wrapper.base_param_settings is not None:
            wrapper.base_param_settings['lr'] *= scale
