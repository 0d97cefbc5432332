"""The mmcv ops that detection needs, from torchvision, for mmcv without compiled ops.

mmcv looks up its ops by name in one module, ``mmcv._ext``. mmcv-lite lacks this module, and so does a fork that pip
built from source without torch. torchvision ships the same arithmetic compiled for every platform.
"""
import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from ..errors import SetupError
from .versions import reinstall_mmcv

_NAME = 'mmcv._ext'


def install_stand_in():
    """Provide the module ``mmcv._ext`` if the installed mmcv has none.

    Raises:
        SetupError: The compiled ops of mmcv or of torchvision do not load: they were built for another torch version.
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
            f'torch version. Fix it with: {reinstall_mmcv(compiled=False)} (no compiler needed), or rebuild them: '
            f'{reinstall_mmcv(compiled=True)}') from error


def _load_torchvision():
    """Load torchvision's libraries of compiled ops; its Python code, which takes over a second to import, can wait."""
    try:
        spec = importlib.util.find_spec('torchvision')
        libraries = [*Path(spec.origin).parent.glob('_C*')] if spec else []  # one or two, by the version
        for library in libraries:
            torch.ops.load_library(library)
        if not libraries:
            importlib.import_module('torchvision')
        torch.ops.torchvision.nms  # noqa: B018 (the look-up raises)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise SetupError(f"torchvision's compiled ops do not load with torch {torch.__version__}: {error}. Install the "
                         'matching pair: pip install --upgrade torch torchvision') from error


class _StandIn(ModuleType):
    """A module with the ops below, and for every other name a function that raises when it is called.

    mmcv looks up all its ops when it is imported, so a missing op must fail only when it is called.
    """

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        if name in _OPS:
            return _OPS[name]

        def missing(*args, **kwargs):
            raise NotImplementedError(
                f"mmcv is installed without its compiled ops, and xcit_dense replaces only NMS, RoIAlign and focal "
                f"loss, not '{name}'. Install mmcv with all ops, which are compiled: {reinstall_mmcv(compiled=True)}")

        return missing


def nms(boxes, scores, iou_threshold, offset):
    """Return the indices of the boxes that stay, best first; of equal scores the first in the input wins.

    Args:
        boxes: (N, 4) as x1, y1, x2, y2.
        scores: (N, ).
        iou_threshold: A box is dropped if its IoU with a better one is above this.
        offset: 0, or 1 for boxes whose width is x2 - x1 + 1.
    """
    if offset:  # moving the corner by one gives the same width, and the same overlaps
        boxes = boxes + boxes.new_tensor([0, 0, offset, offset])
    return torch.ops.torchvision.nms(boxes, scores.to(boxes.dtype), iou_threshold)


def roi_align_forward(input, rois, output, argmax_y, argmax_x, aligned_height, aligned_width, spatial_scale,
                      sampling_ratio, pool_mode, aligned):
    """Write the RoIAlign of (B, C, H, W) at rois (K, 5) into ``output`` (K, C, aligned_height, aligned_width)."""
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
    # on a GPU the gradients are summed in any order, so in deterministic mode the CPU does it
    exact = grad_output.is_cuda and torch.are_deterministic_algorithms_enabled()
    device = 'cpu' if exact else grad_output.device
    grad_input += torch.ops.torchvision._roi_align_backward(
        grad_output.to(device, dtype), rois.to(device, dtype), spatial_scale, aligned_height, aligned_width,
        *grad_input.shape, sampling_ratio, aligned).to(grad_input.device)


def sigmoid_focal_loss_forward(input, target, weight, output, gamma, alpha):
    """Write the focal loss of logits (N, C) into ``output`` (N, C).

    Args:
        target: (N, ), the class of each row; C is the background.
        weight: (C, ), a factor for the rows of each class, or empty.
    """
    output.copy_(_focal_loss(input, target, weight, gamma, alpha))


def sigmoid_focal_loss_backward(input, target, weight, grad_input, gamma, alpha):
    """Write the derivative of each loss by its logit into ``grad_input`` (N, C)."""
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
