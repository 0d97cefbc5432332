"""What torch's compiler needs so that one graph serves images of any size."""
import torch


def keep_sizes_dynamic():
    """Let compiled graphs call torch's own gradient of a convolution, as they do in the end on CUDA and on a CPU.

    On the way there Inductor fixes the strides of the maps (seen with torch 2.14): a graph for every image size.
    """
    try:
        from torch._inductor.kernel.conv import aten_convolution_backward_fallback
        from torch._inductor.lowering import lowerings
    except ImportError:  # another version of torch, which calls it without a detour
        return
    if not torch.version.hip:
        lowerings[torch.ops.aten.convolution_backward.default] = aten_convolution_backward_fallback
