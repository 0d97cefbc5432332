"""Stem and pyramid: sequences of strided convolutions, batch norms and GELUs."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .convs import strided
from .norms import norm_act, sync_group
from .untouched import (
    are_plain,
    can_run,
    can_run_or_be_traced,
    is_batch_norm,
    is_doubling,
    is_gelu,
    is_halving,
    is_pointwise,
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


def project_code(conv: nn.Module, rows: Tensor, columns: Tensor):
    """Return a 1x1 convolution of the grid of ``rows`` (H, d) and ``columns`` (W, d): (1, C, H, W); None if modified.

    On concatenated codes it is the sum of a linear map of the row and one of the column. So the code of the grid is
    never built, and Inductor, which fails on its convolution on a CPU, can compile maps of any size.
    """
    if not (can_run_or_be_traced(rows) and is_pointwise(conv) and is_untouched(conv)
            and are_plain(weight_and_bias(conv), None)):
        return None
    weight_rows, weight_columns = conv.weight.flatten(1).split(rows.shape[1], dim=1)
    y, x = F.linear(rows, weight_rows), F.linear(columns, weight_columns, conv.bias)  # (H, C), (W, C)
    return (y.unsqueeze(1) + x).permute(2, 0, 1).unsqueeze(0)  # channels last in memory, as the stem's map
