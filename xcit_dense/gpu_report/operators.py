"""The operators that the time of a step goes to, in groups."""
import torch
from torch.profiler import ProfilerActivity

PRODUCTS, CONVOLUTIONS, FUSED, OTHER = 'products', 'depthwise convolutions', 'fused kernels', 'other'
_NORMS, _COPIES, _ELEMENTWISE = 'norms', 'copies and conversions', 'elementwise and sums'
GROUPS = PRODUCTS, CONVOLUTIONS, 'GELU', _NORMS, _ELEMENTWISE, _COPIES, FUSED, OTHER
#: The groups whose time is that of reading and writing memory.
BOUND_BY_MEMORY = GROUPS[1:-1]
#: Names of operators without ``aten::``, the underscores at their ends and ``_backward``.
_MEMBERS = {
    PRODUCTS: 'mm bmm addmm baddbmm addbmm mv addmv dot linear matmul mkldnn_linear addmm_activation',
    'GELU': 'gelu',
    _COPIES: 'copy clone to_copy contiguous cat stack fill zero constant_pad_nd index index_put gather',
    _ELEMENTWISE: 'add sub rsub mul div addcmul addcdiv neg reciprocal sqrt rsqrt square pow exp log2 exp2 abs sin cos '
                  'clamp clamp_min clamp_max maximum minimum where eq ne lt gt le ge bitwise_and sum mean amax amin '
                  'norm linalg_vector_norm var_mean softmax relu bernoulli lerp '
                  'max_pool2d_with_indices',
}
_GROUP_OF = {name: group for group, names in _MEMBERS.items() for name in names.split()}


def profile(step, runs, cuda) -> list[dict]:
    """Profile a function and return its operators, the longest first.

    Args:
        step: The function.
        runs: How often it is called.
        cuda: Whether to count kernels of the GPU; otherwise the time of the CPU in each operator itself.

    Returns:
        As `operators_of`.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities, record_shapes=True) as found:
        for _ in range(runs):
            step()
        if cuda:
            torch.cuda.synchronize()
    return operators_of(found.events(), runs, cuda)


def operators_of(events, runs, cuda) -> list[dict]:
    """Sum events of the profiler by the operator that they belong to.

    Args:
        events: Its events.
        runs: How many calls they are from.
        cuda: As for `profile`.

    Returns:
        A dict per operator, per call: its ``name``, its ``group``, ``calls`` (of kernels if ``cuda``), ``seconds``, and
        the ``kernel`` that takes the most of them. An operator of two groups is there twice. On a GPU the seconds add
        up to those of all its kernels: what no operator launched, or what several count, is there too.
    """
    found, on_device = {}, 0
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CPU:
            # marks of ranges are no work
            on_device += 0 if getattr(event, 'is_user_annotation', False) else event.time_range.elapsed_us()
        elif cuda:
            for kernel in event.kernels:
                _add(found, event.name, group_of(event.name, event.input_shapes, kernel.name), kernel.duration,
                     kernel.name)
        else:
            _add(found, event.name, group_of(event.name, event.input_shapes), event.self_cpu_time_total, '')
    left = on_device - sum(entry['seconds'] for entry in found.values())
    if cuda and abs(left) > 1e-3 * on_device:
        _add(found, 'of no operator' if left > 0 else 'counted more than once', OTHER, left, '')
    for entry in found.values():
        kernels = entry.pop('kernels')
        entry.update(calls=entry['calls'] / runs, seconds=entry['seconds'] / runs / 1e6,
                     kernel=max(kernels, key=kernels.get))
    return sorted(found.values(), key=lambda entry: -entry['seconds'])


def _add(found, name, group, microseconds, kernel):
    entry = found.setdefault((name, group), dict(name=name, group=group, calls=0, seconds=0, kernels={}))
    entry['calls'] += 1
    entry['seconds'] += microseconds
    entry['kernels'][kernel] = entry['kernels'].get(kernel, 0) + microseconds


def group_of(name, shapes=(), kernel='') -> str:
    """Return the group of an operator.

    Args:
        name: Its name in the profiler.
        shapes: Shapes of its tensors.
        kernel: The kernel that it launched, if any. One that no operator of torch launched is of a fused form.
    """
    scope, _, base = name.rpartition('::')
    if scope not in ('aten', 'mkldnn'):
        return FUSED if kernel else OTHER
    base = base.strip('_').removesuffix('_data').removesuffix('_backward')
    if 'conv' in base:
        # weights of one input channel for each group
        weights = any(len(shape) == 4 and shape[1] == 1 and 1 < shape[2] == shape[3] for shape in shapes)
        return CONVOLUTIONS if weights or 'depthwise' in base else PRODUCTS
    if 'batch_norm' in base or 'layer_norm' in base:
        return _NORMS
    return _GROUP_OF.get(base, OTHER)
