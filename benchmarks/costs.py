"""The least that XCiT must compute and move in memory, and how fast this machine does both."""
import statistics
from contextlib import contextmanager
from time import perf_counter

import torch
import torch.nn.functional as F
from mmengine.device import get_device
from torch.profiler import ProfilerActivity, profile

from xcit_dense.archs import get_arch
from xcit_dense.models import PYRAMID_STRIDES

#: Rows, inner size and columns of the timed products: a square one, and the FFN of small 12 on 16,000 tokens.
_SHAPES = ((2048, 2048, 2048), (16000, 384, 1536), (16000, 1536, 384))
_SHAPES_GPU = (*_SHAPES, (8192, 8192, 8192), (64000, 384, 1536))


def multiply_adds(arch, height: int, width: int, *, training: bool = False, authors: bool = False,
                  num_classes: int = None) -> int:
    """Return the multiply-adds of the backbone with its pyramid, or of the classifier, for one image.

    Args:
        arch: As for `XCiT`.
        height: Height of the image in pixels.
        width: Width of the image in pixels.
        training: Whether to count the backward pass too.
        authors: Whether to count what `ReferenceXCiT` does: XCA on tokens, and positions as a convolution over the
            grid. Otherwise, XCA counts in its Gram form if that is less, and positions not at all: they are one product
            per row and per column.
        num_classes: Number of classes of an `XCiTClassifier`; None for the backbone with its pyramid.
    """
    arch = get_arch(arch)
    C = arch.embed_dims
    passes = 3 if training else 1  # forward, gradient of the input, gradient of the weight
    stem, N = 0, None
    for channels_in, channels, cells in _stem_layers(arch, height, width):
        # the gradient of the image is not needed
        stem += 9 * channels_in * channels * cells * (2 if training and N is None else passes)
        N = cells
    block = sum(branch_multiply_adds(arch, N, training=training, authors=authors).values())
    positions = 64 * N * C * (2 if training else 1) if authors else 0
    if num_classes is not None:
        attention = 3 * (N + 1) * C * C + 2 * (N + 1) * C
        ends = 2 * (attention + C * C + 2 * C * int(C * arch.mlp_ratio)) + C * num_classes
        return stem + positions + arch.depth * block + ends * passes
    pyramid = sum(N * C * C * {2: 4, 4: 4 + 16}.get(arch.patch_size // stride, 0) for stride in PYRAMID_STRIDES)
    return stem + positions + (arch.out_indices[-1] + 1) * block + pyramid * passes


def branch_multiply_adds(arch, tokens: int, *, training: bool = False, authors: bool = False) -> dict:
    """Return the multiply-adds of each branch of a block (``'XCA'``, ``'LPI'``, ``'FFN'``) for one image.

    Args:
        arch: As for `XCiT`.
        tokens: Number of tokens of the image.
        training: As for `multiply_adds`.
        authors: As for `multiply_adds`.
    """
    arch = get_arch(arch)
    N, C, d = tokens, arch.embed_dims, arch.embed_dims // arch.num_heads
    passes = 3 if training else 1
    token_form = (4 * N * C * C + 2 * N * C * d) * passes
    gram_form = 5 * N * C * C + 7 * C**3 if training else 2 * N * C * C + 3 * C**3 + 2 * C * C * d
    return dict(XCA=token_form if authors else min(token_form, gram_form), LPI=18 * N * C * passes,
                FFN=2 * N * C * int(C * arch.mlp_ratio) * passes)


def moved_elements(arch, height: int, width: int, *, training: bool = False) -> int:
    """Return the elements read and written for one image if only convolutions and matrix products access memory.

    Norms, GELUs, residuals and LayerScale are assumed to be fused into the product next to them, which reads its input
    (and the residual) and writes its output once. Weights are not counted. Training counts three times as much: one
    forward and two backward products for each.
    """
    arch = get_arch(arch)
    N, stem = 0, 0
    for channels_in, channels, cells in _stem_layers(arch, height, width):
        stem += channels_in * cells * 4 + channels * cells
        N = cells
    block = sum(branch_elements(arch, N, training=training).values())
    doubled = {2: 1 + 4, 4: 1 + 4 + 4 + 16}
    pyramid = N * arch.embed_dims * sum(doubled.get(arch.patch_size // stride, 0) for stride in PYRAMID_STRIDES)
    return int((stem + pyramid) * (3 if training else 1) + (arch.out_indices[-1] + 1) * block)


def branch_elements(arch, tokens: int, *, training: bool = False) -> dict:
    """Return the elements of `moved_elements` that each branch of a block accounts for, as `branch_multiply_adds`."""
    arch = get_arch(arch)
    # XCA: read for G, read and written for the output; LPI and FFN: two layers and the residual
    times = dict(XCA=3, LPI=5, FFN=3 + 2 * arch.mlp_ratio)
    return {name: times[name] * tokens * arch.embed_dims * (3 if training else 1) for name in times}


def _stem_layers(arch, height, width):
    """Yield input channels, output channels and output cells of every convolution of the stem."""
    channels_in, reduction = 3, arch.patch_size // 2
    while reduction >= 1:
        height, width = -(-height // 2), -(-width // 2)
        yield channels_in, arch.embed_dims // reduction, height * width
        channels_in, reduction = arch.embed_dims // reduction, reduction // 2


def matrix_rate(dtype: torch.dtype) -> float:
    """Return the multiply-adds per second of the fastest of several matrix products on the device."""
    device, best = get_device(), 0
    for rows, inner, columns in _SHAPES_GPU if device == 'cuda' else _SHAPES:
        a = torch.randn(1, rows, inner, device=device).to(dtype)
        b = torch.randn(1, inner, columns, device=device).to(dtype)
        image, kernel = a.mT.unsqueeze(2), b[0].t().contiguous()[:, :, None, None]  # the same as a 1x1 convolution
        seconds = min(_fastest(lambda a=a, b=b: a @ b), _fastest(lambda x=image, w=kernel: F.conv2d(x, w)))
        best = max(best, rows * inner * columns / seconds)
    return best


def copy_rate() -> float:
    """Return the bytes per second that a copy of half a GiB reads and writes on the device."""
    source = torch.zeros(2**27, device=get_device())
    target = torch.empty_like(source)
    return 2 * source.nbytes / _fastest(lambda: target.copy_(source))


def _fastest(call, runs=5):
    call()
    return min(time_call(call) for _ in range(runs))


def time_call(call) -> float:
    """Return the seconds of one call, including its work on the GPU."""
    _wait()
    start = perf_counter()
    call()
    _wait()
    return perf_counter() - start


def host_time(call) -> float:
    """Return the seconds until one call returns, whatever the GPU still has to do."""
    _wait()
    start = perf_counter()
    call()
    seconds = perf_counter() - start
    _wait()
    return seconds


def gpu_time(step, runs=10) -> float:
    """Return the median seconds that the GPU needs for a step alone: those of a CUDA graph of it, replayed.

    Raises:
        RuntimeError: The step cannot be captured, as it waits for the GPU.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):  # what is chosen or allocated at first must not be in the graph
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    seconds = []
    for _ in range(runs + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        seconds.append(start.elapsed_time(end) / 1000)
    graph.reset()
    return statistics.median(seconds[2:])


def launches(step) -> tuple:
    """Return how many kernels, copies and fills a function launches on the GPU, and how often it waits for them."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        step()
    events = found.events()
    return (sum(event.device_type == torch.autograd.DeviceType.CUDA for event in events),
            sum(event.name.startswith('cuda') and event.name.endswith('Synchronize') for event in events))


def _wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def without_tf32():
    """Context, or decorator, in which float32 on a GPU is float32: its products do not use TF32."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    try:
        yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value
