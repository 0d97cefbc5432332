"""Fold norms and LayerScale into neighbouring weights, for inference.

No layer is changed in place: a folded layer is a copy that replaces the original. So a layer that is used in two places
keeps working in both, and modified layers stay as they are.
"""
import copy

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ..ffn import FFN
from ..lpi import LPI
from ..xca import XCA
from .ops import scaled_rows
from .untouched import (
    are_plain,
    is_batch_norm,
    is_depthwise,
    is_doubling,
    is_halving,
    is_layer_norm,
    is_untouched,
    weight_and_bias,
)


@torch.no_grad()
def fuse(stem: nn.Module, blocks, levels):
    """Fold everything that nobody modified in parts of an XCiT in evaluation mode.

    Args:
        stem: The sequence of its convolutions.
        blocks: The blocks.
        levels: The levels of the pyramid.
    """
    for sequence in (stem, *levels):
        _fuse_sequence(sequence)
    for block in blocks:
        _fuse_branch(block, 'norm1', 'attn', 'gamma1', first='qkv', last='proj')
        # folding the norm before a convolution that pads with zeros would change the border, and folding the batch
        # norm would give large numbers that cancel in half types
        _fuse_branch(block, None, 'local_mp', 'gamma3', first=None, last='conv2')
        _fuse_branch(block, 'norm2', 'mlp', 'gamma2', first='fc1', last='fc2')


def _fuse_sequence(sequence):
    """Fold each batch norm of nested sequences into the convolution before it."""
    if type(sequence) is not nn.Sequential:
        return
    for i, layer in enumerate(sequence):
        _fuse_sequence(layer)
        after = sequence[i + 1] if i + 1 < len(sequence) else None
        if ((is_halving(layer) or is_doubling(layer)) and is_batch_norm(after) and after.running_mean is not None
                and is_untouched(layer, after)):
            sequence[i] = fuse_conv_bn_eval(layer, after, transpose=layer.transposed)
            sequence[i + 1] = nn.Identity()


def _fuse_branch(block, norm, branch, gamma, first, last):
    """Fold the affine part of a norm into the first layer of a branch, and LayerScale into the last; all by name."""
    old = getattr(block, branch)
    if type(old) not in (XCA, LPI, FFN) or not is_untouched(old):
        return
    new, affine, scale = _copy_of(old), norm and getattr(block, norm), block._parameters.get(gamma)
    if affine and _is_foldable_norm(affine) and _is_foldable_layer(getattr(new, first)):
        setattr(new, first, _behind(getattr(new, first), affine))
        plain = nn.LayerNorm(affine.normalized_shape, affine.eps, elementwise_affine=False)
        setattr(block, norm, plain.train(affine.training))
        setattr(block, branch, new)
    # a forward pre-hook of the block may recompute its LayerScale, as pruning does
    if (scale is not None and scale.dim() == 1 and not block._forward_pre_hooks
            and _is_foldable_layer(getattr(new, last))):
        layer = getattr(new, last)
        setattr(new, last, _with(layer, *scaled_rows(layer.weight, layer.bias, scale, layer.weight.dtype)))
        delattr(block, gamma)
        setattr(block, gamma, 1.)
        setattr(block, branch, new)


def _is_foldable_norm(norm):
    return is_layer_norm(norm) and norm.weight is not None and norm.bias is not None and is_untouched(norm)


def _is_foldable_layer(layer):
    return ((type(layer) is nn.Linear or is_depthwise(layer)) and is_untouched(layer)
            and are_plain(weight_and_bias(layer), layer.weight.dtype))


def _behind(linear, norm):
    """Return a linear layer after a norm, with the norm's weight and bias folded into its own."""
    shift = linear.weight @ norm.bias
    bias = shift if linear.bias is None else linear.bias + shift
    return _with(linear, linear.weight * norm.weight, bias)


def _with(layer, weight, bias):
    layer = _copy_of(layer)
    layer.weight = nn.Parameter(weight, False)
    layer.bias = None if bias is None else nn.Parameter(bias, False)
    return layer


def _copy_of(module):
    """Return a module with the same parts, which can be replaced without changing the original."""
    new = copy.copy(module)
    for name in ('_modules', '_parameters', '_buffers'):
        if name in vars(module):
            vars(new)[name] = copy.copy(vars(module)[name])
    return new
