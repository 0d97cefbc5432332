"""The branches of a block: which of them may run in their fast form."""
import torch
from torch import Tensor, nn

from ..drop_path import DropPath
from . import ffn, lpi, ops, xca
from .conditions import are_plain, are_traceable, can_run, can_run_or_trace, is_traced, is_untouched, weight_and_bias
from .mix import CancelsError
from .residual import residual


def attend(block, x: Tensor):
    """Return x + drop_path(gamma1 * attn(norm1(x))) of tokens (B, N, C) in Gram form, or None."""
    parts = block._modules  # for speed: block.attn searches three dicts
    attn = parts.get('attn')
    if not (can_run_or_trace(x) and xca.is_cheaper(x) and xca.is_as_built(attn)) or attn.training and attn.drop_rate:
        return None
    parameters = xca.parameters_of(attn)
    if is_traced():  # the Gram form in ordinary operations
        if not are_traceable(parameters):
            return None
        return x + block.drop_path(block.gamma1 * xca.gram_form(attn, block.norm1(x)))
    before = torch.get_rng_state() if x.device.type == 'cpu' else None
    args = _arguments(x, parts.get('norm1'), block.gamma1, parts.get('drop_path'), parameters)
    try:
        return args and residual(xca.Form(attn.num_heads), *args)
    except CancelsError:
        torch.set_rng_state(before)  # the plain line draws again; only on a CPU it may have to
        return None


def mix_neighbours(block, x: Tensor, height: int, width: int):
    """Return x + drop_path(gamma3 * local_mp(norm3(x), height, width)) of tokens (B, N, C), or None."""
    parts = block._modules
    branch = parts.get('local_mp')
    if not (can_run(x) and x.shape[1] == height * width and lpi.is_as_built(branch)):
        return None
    args = _arguments(x, parts.get('norm3'), block.gamma3, parts.get('drop_path'), lpi.parameters_of(branch))
    return args and residual(lpi.Form(branch.bn, height, width), *args)


def feed_forward(block, x: Tensor):
    """Return x + drop_path(gamma2 * mlp(norm2(x))) of tokens (B, N, C), or None."""
    parts = block._modules
    mlp = parts.get('mlp')
    if not (can_run(x) and ffn.is_as_built(mlp)):
        return None
    args = _arguments(x, parts.get('norm2'), block.gamma2, parts.get('drop_path'), ffn.parameters_of(mlp))
    return args and residual(ffn.Form(), *args)


def _arguments(x, norm, gamma, drop_path, parameters):
    """Return the arguments of a fast form; None if something around the branch was modified.

    They are those of `xcit_dense.models.fast.residual.residual` after the first. Random numbers are drawn as in the
    plain lines.
    """
    if not (type(norm) is nn.LayerNorm and len(norm.normalized_shape) == 1 and type(drop_path) is DropPath
            and is_untouched(norm, drop_path) and isinstance(gamma, Tensor) and gamma.dim() == 1):
        return None
    dtype = x.dtype
    if ops.is_autocast(x):  # the stem outputs a half type; the plain lines add float32 to it
        x, dtype = x.to(torch.promote_types(dtype, parameters[0].dtype)), None
    weight, bias = weight_and_bias(norm)
    if not are_plain((weight, bias, gamma, *parameters), dtype):
        return None
    gamma, keep = ops.factors(x, gamma, drop_path.draw(x))
    return x, (weight, bias, norm.eps), keep, (*parameters, gamma)
