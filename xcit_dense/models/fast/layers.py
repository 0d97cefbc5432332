"""Stem and pyramid: sequences of strided convolutions, batch norms and GELUs."""
import torch
from torch import Tensor, nn

from .convs import strided
from .norms import norm_act, sync_group
from .untouched import (
    are_plain,
    can_run,
    is_batch_norm,
    is_doubling,
    is_gelu,
    is_halving,
    is_untouched,
    weight_and_bias,
)


def run(module: nn.Module, x: Tensor) -> Tensor:
    """Return ``module(x)`` of a map (B, C, H, W); layers that nobody modified run in fast forms.

    On devices other than a CPU, only the memory layout changes.
    """
    if not can_run(x):
        return module(x)
    x = x.contiguous(memory_format=torch.channels_last)  # the layout of tokens, and of the fastest convolutions
    if x.device.type != 'cpu':
        return module(x)
    layers = _flatten(module)
    while layers:
        layer = layers.pop(0)
        if not is_untouched(layer):
            x = layer(x)
        elif is_halving(layer) or is_doubling(layer):
            x = strided(x, layer) if are_plain(weight_and_bias(layer), x.dtype) else layer(x)
        elif is_batch_norm(layer) and sync_group(layer) is None and are_plain(weight_and_bias(layer), None):
            gelu = bool(layers) and is_gelu(layers[0]) and is_untouched(layers[0])
            x = norm_act(x, layer, gelu)
            if gelu:
                layers.pop(0)
        else:
            x = layer(x)
    return x


def _flatten(module):
    """Return the layers of nested sequences, except sequences that must be called themselves."""
    if type(module) is not nn.Sequential or not is_untouched(module):
        return [module]
    return [layer for part in module for layer in _flatten(part)]
