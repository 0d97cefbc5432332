"""The compiled mmcv ops that detection needs, from torchvision, where mmcv has none: mmcv-lite, or a fork's build.

mmcv looks its ops up by name in one module, ``mmcv._ext``. mmcv-lite lacks it, and so does what pip makes of the
fork's source without torch beside it. torchvision ships the same arithmetic compiled for every platform.
"""
import importlib
import importlib.machinery
import importlib.util
import sys
from types import ModuleType

import torch

from ..errors import SetupError
from .versions import reinstall_mmcv

_NAME = 'mmcv._ext'


def install_stand_in():
    """Put a module in the place of ``mmcv._ext`` where the installed mmcv brings none.

    Raises:
        SetupError: The compiled ops of mmcv or of torchvision do not load: they were built for another torch.
    """
    if _NAME in sys.modules:
        return
    if importlib.util.find_spec(_NAME) is None:
        _load_torchvision()
        module = _StandIn(_NAME, __doc__)
        module.__spec__ = importlib.machinery.ModuleSpec(_NAME, loader=None)
        sys.modules[_NAME] = module
        return
    try:
        importlib.import_module(_NAME)
    except ImportError as error:
        raise SetupError(
            f"mmcv's compiled ops do not load with torch {torch.__version__}: {error}. They were built for another "
            f'torch. Mend it with: {reinstall_mmcv(compiled=False)} (no compiler needed), or build them anew: '
            f'{reinstall_mmcv(compiled=True)}') from error


def is_stand_in() -> bool:
    """Whether mmcv's ops come from here and not from compiled code of its own."""
    return isinstance(sys.modules.get(_NAME), _StandIn)


def _load_torchvision():
    """Import torchvision, which registers the ops used below, and make sure that it did."""
    try:
        importlib.import_module('torchvision')
        torch.ops.torchvision.nms  # noqa: B018 (the look-up raises)
    except (ImportError, RuntimeError, AttributeError) as error:
        raise SetupError(f"torchvision's compiled ops do not load with torch {torch.__version__}: {error}. Install the "
                         'pair that belongs together: pip install --upgrade torch torchvision') from error


class _StandIn(ModuleType):
    """Gives the ops below, and for every other name a function that raises when it is called.

    mmcv asks for all its names when it is imported, so a missing op must not fail before that.
    """

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        if name in _OPS:
            return _OPS[name]

        def missing(*args, **kwargs):
            raise NotImplementedError(
                f"the op '{name}' of mmcv is not compiled here, and xcit_dense replaces only "
                f'{", ".join(sorted(_OPS))}. Compile the ops of mmcv: {reinstall_mmcv(compiled=True)}')

        return missing


def nms(boxes, scores, iou_threshold, offset):
    """Indices of the boxes that stay, best first; of equal scores the first in the input wins.

    Args:
        boxes: (N, 4) as x1, y1, x2, y2.
        scores: (N, ).
        iou_threshold: A box goes when its IoU with a better one is above this.
        offset: 0, or 1 for boxes whose width is x2 - x1 + 1.
    """
    if offset:  # the corner one further gives the same width, and the same overlaps
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    return torch.ops.torchvision.nms(boxes, scores.to(boxes.dtype), iou_threshold)


def roi_align_forward(input, rois, output, argmax_y, argmax_x, aligned_height, aligned_width, spatial_scale,
                      sampling_ratio, pool_mode, aligned):
    """RoIAlign of (B, C, H, W) at rois (K, 5) into ``output`` (K, C, aligned_height, aligned_width)."""
    _check_average(pool_mode)
    # half types: sums and box coordinates in float32
    dtype = torch.promote_types(input.dtype, torch.float32)
    output.copy_(torch.ops.torchvision.roi_align(
        input.to(dtype), rois.to(dtype), spatial_scale, aligned_height, aligned_width, sampling_ratio, aligned))


def roi_align_backward(grad_output, rois, argmax_y, argmax_x, grad_input, aligned_height, aligned_width, spatial_scale,
                       sampling_ratio, pool_mode, aligned):
    """Add the gradient of RoIAlign's input to ``grad_input`` (B, C, H, W)."""
    _check_average(pool_mode)
    dtype = torch.promote_types(grad_output.dtype, torch.float32)
    grad_input += torch.ops.torchvision._roi_align_backward(
        grad_output.to(dtype), rois.to(dtype), spatial_scale, aligned_height, aligned_width, *grad_input.shape,
        sampling_ratio, aligned)


def sigmoid_focal_loss_forward(input, target, weight, output, gamma, alpha):
    """Focal loss of logits (N, C) into ``output`` (N, C).

    Args:
        target: (N, ), the class of each row; C is the background.
        weight: (C, ) factor of the rows by their class, or empty.
    """
    output.copy_(_focal_loss(input, target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(input, target, weight, grad_input, gamma, alpha):
    """The derivative of each loss by its logit into ``grad_input`` (N, C)."""
    with torch.enable_grad():
        logits = input.detach().requires_grad_()
        loss = _focal_loss(logits, target, weight, gamma, alpha)
        grad_input.copy_(torch.autograd.grad(loss.sum(), logits)[0])


def _focal_loss(logits, target, weight, gamma, alpha):
    from torchvision.ops import sigmoid_focal_loss
    classes = logits.shape[1]
    one_hot = torch.nn.functional.one_hot(target, classes + 1)[:, :classes]
    # half types: logarithms and powers in float32
    dtype = torch.promote_types(logits.dtype, torch.float32)
    loss = sigmoid_focal_loss(logits.to(dtype), one_hot.to(dtype), alpha, gamma)
    if weight.numel():  # the background has none
        loss = loss * torch.cat([weight, weight.new_ones(1)])[target, None]
    return loss


def _check_average(pool_mode):
    if pool_mode != 1:
        raise NotImplementedError("RoIAlign with pool_mode='max' needs mmcv's compiled ops; torchvision has "
                                  "pool_mode='avg' only")


_OPS = {
    'nms': nms,
    'roi_align_forward': roi_align_forward,
    'roi_align_backward': roi_align_backward,
    'sigmoid_focal_loss_forward': sigmoid_focal_loss_forward,
    'sigmoid_focal_loss_backward': sigmoid_focal_loss_backward,
    'get_compiler_version': lambda: 'none (ops of torchvision through xcit_dense)',
    'get_compiling_cuda_version': lambda: 'none (ops of torchvision through xcit_dense)',
}
