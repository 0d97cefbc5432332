"""Resizing and pooling of maps whose sizes are known only when the graph runs."""
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


@torch.library.custom_op('xcit_dense::resize', mutates_args=())
def resize(maps: Tensor, size: Tensor, align_corners: bool) -> Tensor:
    """Resize maps (B, h, w, C), bilinearly, to ``size``: height and width, int64 (2, ).

    It is a custom op because the size may depend on data. Channels are last because onnxruntime then needs a sixth of
    the time, for resizing and also for the argmax after it.
    """
    maps = F.interpolate(maps.permute(0, 3, 1, 2), size.tolist(), mode='bilinear', align_corners=align_corners)
    return maps.permute(0, 2, 3, 1).contiguous()


@resize.register_fake
def _(maps, size, align_corners):
    height, width = (torch.library.get_ctx().new_dynamic_size(min=1) for _ in range(2))
    return maps.new_empty(maps.shape[0], height, width, maps.shape[3])


def _resize_in_onnx(maps, size, align_corners: bool):
    from onnxscript import opset20 as op
    how = 'align_corners' if align_corners else 'half_pixel'
    return op.Resize(maps, None, None, size, axes=[1, 2], mode='linear', coordinate_transformation_mode=how)


#: The ops of this file in ONNX: for ``custom_translation_table`` of `torch.onnx.export`.
TRANSLATIONS = {torch.ops.xcit_dense.resize.default: _resize_in_onnx}


def size_of(maps: Tensor) -> Tensor:
    """Return height and width of maps (B, H, W, C) as a tensor."""
    return torch.stack([torch.scalar_tensor(length, dtype=torch.int64) for length in maps.shape[1:3]])


class AnySize(TorchFunctionMode):
    """Mode in which adaptive average pooling works with unknown sizes: torch's own export needs multiples."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is F.adaptive_avg_pool2d:
            return adaptive_mean(*args, **kwargs or {})
        return function(*args, **kwargs or {})


def adaptive_mean(input: Tensor, output_size) -> Tensor:
    """Do `torch.nn.functional.adaptive_avg_pool2d` on maps (..., H, W) as a product with two small matrices."""
    height, width = output_size if isinstance(output_size, (list, tuple)) else (output_size, output_size)
    if height is not None:
        input = _means(input.shape[-2], height, input) @ input
    if width is not None:
        input = input @ _means(input.shape[-1], width, input).T
    return input


def _means(length, count, like):
    """Return the matrix (count, length) that computes the means of ``count`` parts of a row."""
    parts = torch.arange(count, device=like.device).unsqueeze(1)
    start, end = parts * length // count, ((parts + 1) * length + count - 1) // count
    places = torch.arange(length, device=like.device)
    return ((places >= start) & (places < end)).to(like.dtype) / (end - start).to(like.dtype)
