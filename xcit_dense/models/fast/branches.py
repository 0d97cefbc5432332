"""The three branches of a block: which of them may run in their fast form."""
import torch
from torch import Tensor, nn

from ..drop_path import DropPath
from ..ffn import FFN
from ..lpi import LPI
from ..xca import XCA
from . import ffn, lpi, pieces, xca
from .switch import is_on
from .untouched import are_plain, can_run, is_batch_norm, is_depthwise, is_gelu, is_layer_norm, is_traced, is_untouched


def attend(block, x: Tensor):
    """Return x + drop_path(gamma1 * attn(norm1(x))) of tokens (B, N, C) in Gram form, or None."""
    attn = block.attn
    if is_traced():  # the Gram form in ordinary operations
        if not (is_on() and xca.is_cheaper(x) and _is_attention(attn)):
            return None
        return x + block.drop_path(block.gamma1 * xca.gram_form(attn, block.norm1(x)))
    if not (can_run(x) and xca.is_cheaper(x) and _is_attention(attn)):
        return None
    args = _arguments(block, x, block.norm1, block.gamma1, xca.parameters_of(attn))
    try:
        return args and xca.residual(block.norm1, attn, *args)
    except xca.CancelsError:
        return None


def mix_neighbours(block, x: Tensor, height: int, width: int):
    """Return x + drop_path(gamma3 * local_mp(norm3(x), height, width)) of tokens (B, N, C), or None."""
    branch = block.local_mp
    if not (can_run(x) and _is_interaction(branch)):
        return None
    args = _arguments(block, x, block.norm3, block.gamma3, lpi.parameters_of(branch))
    return args and lpi.residual(block.norm3, branch, *args, height, width)


def feed_forward(block, x: Tensor):
    """Return x + drop_path(gamma2 * mlp(norm2(x))) of tokens (B, N, C), or None."""
    mlp = block.mlp
    if not (can_run(x) and _is_feed_forward(mlp)):
        return None
    args = _arguments(block, x, block.norm2, block.gamma2, ffn.parameters_of(mlp))
    return args and ffn.residual(block.norm2, mlp, *args)


def _arguments(block, x, norm, gamma, parameters):
    """Return tokens, LayerScale and factors of the samples for a fast form; None if something around it is touched."""
    drop_path = block.drop_path
    if not (is_layer_norm(norm) and type(drop_path) is DropPath and is_untouched(norm, drop_path)):
        return None
    if type(gamma) is float and gamma == 1:  # of a fused block
        gamma = None
    elif not isinstance(gamma, Tensor) or gamma.dim() != 1:
        return None
    if pieces.is_autocast(x):  # the stem gives a half type, to which the plain lines add what is none
        x = x.to(torch.promote_types(x.dtype, parameters[0].dtype))
    if not are_plain(x, norm.weight, norm.bias, gamma, *parameters):
        return None
    return x, *pieces.factors(x, gamma, drop_path.draw(x))


def _is_attention(attn):
    return (type(attn) is XCA and type(attn.qkv) is type(attn.proj) is nn.Linear and attn.proj.bias is not None
            and is_untouched(attn, attn.qkv, attn.proj))


def _is_interaction(lpi):
    return (type(lpi) is LPI and is_depthwise(lpi.conv1) and is_depthwise(lpi.conv2) and is_gelu(lpi.act)
            and is_batch_norm(lpi.bn) and lpi.conv1.bias is not None and lpi.conv2.bias is not None
            and is_untouched(lpi, lpi.conv1, lpi.act, lpi.bn, lpi.conv2))


def _is_feed_forward(mlp):
    return (type(mlp) is FFN and type(mlp.fc1) is type(mlp.fc2) is nn.Linear and is_gelu(mlp.act)
            and mlp.fc1.bias is not None and mlp.fc2.bias is not None
            and is_untouched(mlp, mlp.fc1, mlp.act, mlp.fc2))
