"""The operators that the time of a step goes to, in groups."""
from collections import Counter

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
                  'norm linalg_vector_norm var_mean softmax relu bernoulli lerp max_pool2d_with_indices'}
_GROUP_OF = {name: group for group, names in _MEMBERS.items() for name in names.split()}


def profile(step, runs, cuda) -> list[dict]:
    """Call a function ``runs`` times and return its operators, the longest first.

    Returns:
        A dict per operator, per call: its ``name``, its ``group``, ``calls`` and ``seconds``, on a GPU (``cuda``) those
        of its kernels. There the seconds add up to those of all kernels: what no operator launched is there too.
    """
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with torch.profiler.profile(activities=activities, record_shapes=True) as found:
        for _ in range(runs):
            step()
        if cuda:
            torch.cuda.synchronize()
    seconds, calls, on_device = Counter(), Counter(), 0
    for each in found.key_averages(group_by_input_shape=True):
        value = (each.self_device_time_total if cuda else each.self_cpu_time_total) / runs / 1e6
        if each.device_type != torch.autograd.DeviceType.CPU:  # a kernel; marks of ranges are no work
            on_device += 0 if getattr(each, 'is_user_annotation', False) else value
        elif value:
            key = each.key, group_of(each.key, each.input_shapes, cuda)
            seconds[key] += value
            calls[key] += each.count / runs
    left = on_device - sum(seconds.values())
    if left > 1e-3 * on_device:
        seconds['of no operator', OTHER] = left
    return [dict(name=key[0], group=key[1], calls=calls[key], seconds=value) for key, value in seconds.most_common()]


def groups_of(operators) -> dict:
    """Return the seconds of operators by group, the largest first."""
    groups = Counter()
    for operator in operators:
        groups[operator['group']] += operator['seconds']
    return dict(groups.most_common())


def group_of(name, shapes=(), has_kernels: bool = False) -> str:
    """Return the group of an operator, from its name in the profiler and the shapes of its tensors.

    Kernels that no operator of torch launched are of a fused form.
    """
    scope, _, base = name.rpartition('::')
    if scope not in ('aten', 'mkldnn'):
        return FUSED if has_kernels else OTHER
    base = base.strip('_').removesuffix('_data').removesuffix('_backward')
    if 'conv' in base:
        # weights of one input channel for each group
        weights = any(len(shape) == 4 and shape[1] == 1 and 1 < shape[2] == shape[3] for shape in shapes)
        return CONVOLUTIONS if weights or 'depthwise' in base else PRODUCTS
    return _NORMS if 'batch_norm' in base or 'layer_norm' in base else _GROUP_OF.get(base, OTHER)
