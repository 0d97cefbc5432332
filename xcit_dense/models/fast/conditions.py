"""When the fast path may run: it is switched on, and a part of the model is still as it was built.

The fast forms read the weights of layers without calling them. A layer that was replaced, wrapped, pruned,
parametrised or hooked must be called. So each test here requires exactly the classes that the block builds, with the
``forward`` that they had when this package was imported. They run in every forward pass, in 1% of a block's time.
"""
import os

import torch
from mmengine.model import revert_sync_batchnorm
from mmengine.utils.dl_utils.parrots_wrapper import SyncBatchNorm
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules import module as nn_module
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack, is_traceable_wrapper_subclass

from ...errors import SetupError
from ..drop_path import DropPath
from ..ffn import FFN
from ..lpi import LPI
from ..xca import XCA

_VARIABLE = 'XCIT_DENSE_FAST'
_word = os.environ.get(_VARIABLE, '')
if _word not in ('', '0', '1'):
    raise SetupError(f'the environment variable {_VARIABLE} must be 1 (on) or 0 (off), got {_word!r}')
_on = _word != '0'
_ORDINARY = (nn.Parameter, Tensor)  # Tensor for parameters too: functional_call uses plain tensors
_BATCH_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm, SyncBatchNorm,
                type(revert_sync_batchnorm(nn.SyncBatchNorm(1))))  # what mmengine's runner replaces it by
_FORWARDS = {kind: kind.forward for kind in (XCA, LPI, FFN, DropPath, nn.Linear, nn.Conv2d,
                                             nn.ConvTranspose2d, nn.LayerNorm, nn.GELU, nn.Sequential, *_BATCH_NORMS)}
_CONV_FORWARD = nn.Conv2d._conv_forward


def is_on() -> bool:
    """Whether the fast path is switched on."""
    return _on


class set_fast:
    """Turn the fast path on or off for every model of this process, from this call on or for a ``with`` block.

    When it is off, a model consists of ordinary modules with torch's own autograd: slower and larger in memory, but
    with second derivatives. Outputs and gradients are the same up to rounding. The environment variable
    ``XCIT_DENSE_FAST=0`` turns it off from the start.

    Args:
        enabled: True or False.

    Raises:
        ValueError: ``enabled`` is anything else.
    """

    def __init__(self, enabled: bool):
        global _on
        if not isinstance(enabled, bool):
            raise ValueError(f'set_fast needs True or False, got {enabled!r}')
        self._before = _on
        self._enabled = _on = enabled

    def __enter__(self):
        global _on
        _on = self._enabled
        return self

    def __exit__(self, *_):
        global _on
        _on = self._before


def is_traced() -> bool:
    """Whether a compiler or exporter traces the model: it gets ordinary operations, which it optimises itself."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def can_run(x) -> bool:
    """Whether fast forms may run on ``x``: it is an ordinary tensor, not empty, and nothing traces the operations."""
    return (is_on() and not is_traced() and type(x) in _ORDINARY and x.numel() > 0
            and not torch._C._are_functorch_transforms_active()  # vmap, jacrev, ...
            # make_fx, counters of operations, ...
            and (torch._C._len_torch_dispatch_stack() == 0
                 or all(getattr(mode, 'only_counts', False) for mode in _get_current_dispatch_mode_stack()))
            and forward_ad._current_level < 0
            and not nn_module._has_any_global_hook())


def can_run_or_trace(x) -> bool:
    """Like `can_run`, for forms in ordinary operations, which compilers and exporters may get too."""
    return is_on() and not nn_module._has_any_global_hook() if is_traced() else can_run(x)


def are_traceable(parameters) -> bool:
    """Whether a tracer can handle the parameters (or None): no quantised or otherwise packed tensors."""
    return all(p is None or isinstance(p, Tensor) and not is_traceable_wrapper_subclass(p) for p in parameters)


def is_untouched(*modules) -> bool:
    """Whether nobody hooked these modules, compiled them on their own, or replaced ``forward`` of one or its class."""
    for module in modules:
        kind = type(module)
        if _FORWARDS.get(kind) is not kind.forward or 'forward' in module.__dict__:
            return False
        if (module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
                or module._backward_pre_hooks or module._compiled_call_impl is not None):
            return False
    return True


def weight_and_bias(layer):
    """Return weight and bias of a layer. This is faster than ``layer.weight``, which searches three dicts."""
    parameters = layer._parameters
    if 'weight' in parameters and 'bias' in parameters:  # not so if a user replaced them by buffers
        return parameters['weight'], parameters['bias']
    return layer.weight, layer.bias


def are_plain(parameters, dtype) -> bool:
    """Whether parameters (or None) are ordinary tensors of a type; ``dtype`` None allows any type."""
    for parameter in parameters:
        if parameter is not None and (type(parameter) not in _ORDINARY
                                      or dtype is not None and parameter.dtype is not dtype):
            return False
    return True


def is_gelu(act) -> bool:
    """Whether a module is the exact GELU."""
    return type(act) is nn.GELU and act.approximate == 'none'


def is_batch_norm(norm) -> bool:
    """Whether a module is a batch norm that computes what torch's does."""
    return type(norm) in _BATCH_NORMS


def is_depthwise(conv) -> bool:
    """Whether a module is a depthwise 3x3 convolution that keeps the size of a map."""
    return _is_conv(conv, nn.Conv2d, size=3, stride=1, padding=1) and (
        conv.groups == conv.in_channels == conv.out_channels)


def is_halving(conv) -> bool:
    """Whether a module is a 3x3 convolution with stride 2 and padding 1."""
    return _is_conv(conv, nn.Conv2d, size=3, stride=2, padding=1) and conv.groups == 1


def is_pointwise(conv) -> bool:
    """Whether a module is a 1x1 convolution."""
    return _is_conv(conv, nn.Conv2d, size=1, stride=1, padding=0) and conv.groups == 1


def is_doubling(conv) -> bool:
    """Whether a module is a 2x2 transposed convolution with stride 2."""
    return _is_conv(conv, nn.ConvTranspose2d, size=2, stride=2, padding=0) and conv.groups == 1


def _is_conv(conv, kind, size, stride, padding):
    """Whether a layer is of a kind and shape and pads with zeros, also if somebody replaced ``_conv_forward``."""
    return (type(conv) is kind and conv.kernel_size == (size, size) and conv.stride == (stride, stride)
            and conv.padding == (padding, padding) and conv.output_padding == (0, 0) and conv.dilation == (1, 1)
            and conv.padding_mode == 'zeros' and '_conv_forward' not in conv.__dict__
            and nn.Conv2d._conv_forward is _CONV_FORWARD)
