"""Inference in bfloat16: which parts of a model run in it, and which devices support it."""
from functools import partial

import torch
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from torch import Tensor

from .._utils.machine import can_use_bfloat16
from .._utils.text import listed
from ..errors import ConfigError

#: Types that a model can compute in. float16 is not one: where it overflows has not been checked.
DTYPES = ('float32', 'bfloat16')
#: Heads whose forward outputs only scores and deltas, with the last layers that stay in float32. Other heads stay in
#: float32 completely: some pass pixel coordinates through their layers, and above 1024 bfloat16 has every 8th only.
_HEADS = dict(
    RPNHead=('rpn_cls', 'rpn_reg'), RetinaHead=('retina_cls', 'retina_reg'), Shared2FCBBoxHead=('fc_cls', 'fc_reg'),
    Shared4Conv1FCBBoxHead=('fc_cls', 'fc_reg'), FCNMaskHead=('conv_logits', ), FPNHead=('conv_seg', ),
    UPerHead=('conv_seg', ), FCNHead=('conv_seg', ), SegformerHead=('conv_seg', ))
_FEATURES = {'backbone', 'neck'}


def set_dtype(model, dtype: str = 'float32') -> str:
    """Make a model compute in a type at inference, on its current device. Call it once.

    With bfloat16, these run under autocast: the backbone, the neck and the hidden layers of the heads of this
    package's configs. Their inputs and outputs are float32. These stay in float32: the last layers of these heads,
    other heads, all that is not a layer (boxes, NMS, RoIAlign, resizing of logits, argmax), and the backbone's Gram
    matrices, norms and softmax. If the device does not support bfloat16, where emulation would be slower, everything
    stays in float32 and a log line says so.

    Args:
        model: A detector or segmentor of mmdet or mmseg, also one inside a model for test-time augmentation.
        dtype: One of `DTYPES`.

    Returns:
        The type that the model computes in.

    Raises:
        ConfigError: There is no such type.
    """
    if dtype not in DTYPES:
        raise ConfigError(f'dtype must be one of {listed(DTYPES)}, got {dtype!r}')
    if dtype == 'float32' or not can_use_bfloat16(next(model.parameters()).device):
        return 'float32'
    for parent in model.modules():
        parts = dict(parent.named_children())
        for name in parts.keys() & _FEATURES:
            parts[name].forward = partial(_in_bfloat16, parts[name].forward)
        for name in parts.keys() & _HEADS.get(type(parent).__name__, ()):
            parts[name].forward = partial(_in_float32, parts[name].forward)
        if type(parent).__name__ in _HEADS:
            parent.forward = partial(_in_bfloat16, parent.forward)
    return dtype


def _in_bfloat16(forward, *args, **kwargs):
    """Call a forward under autocast; its outputs are float32."""
    device = next(_tensors((args, kwargs))).device
    with torch.autocast(device.type, torch.bfloat16):
        return _to_float32(forward(*args, **kwargs))


def _in_float32(forward, x):
    with torch.autocast(x.device.type, enabled=False):
        return forward(x.float())


def _tensors(value):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _to_float32(value):
    if isinstance(value, Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    return type(value)(map(_to_float32, value)) if isinstance(value, (list, tuple)) else value


@HOOKS.register_module()
class DtypeHook(Hook):
    """Tests a model in another type, see `set_dtype`: ``custom_hooks=[dict(type='DtypeHook', dtype=...)]``.

    Args:
        dtype: One of `DTYPES`.
    """

    def __init__(self, dtype: str):
        self.dtype = dtype

    def before_test(self, runner):
        """Set the type; runs after `FuseHook`."""
        set_dtype(runner.model, self.dtype)
        self.dtype = 'float32'  # once, though several tests may follow
