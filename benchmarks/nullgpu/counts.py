"""Prints as JSON what a step launches on the GPU that computes nothing, by type and mode: run by test_launches.py."""
import json
import warnings

import torch
from run import launches
from torch._dynamo.utils import counters

from benchmarks.cells import make_step
from benchmarks.models import build_models
from xcit_dense import Arch, XCiT
from xcit_dense.models.fast import xca

warnings.filterwarnings('ignore')


def count(name, depth, dtype, mode):
    """Return launches and waits of a step of small 12 patch 16 with another depth, on two images."""
    arch = Arch(384, depth, 8, 16, out_indices=(0, 1, 2, depth - 1))
    model = build_models(arch, mode, [name])[name]
    step = make_step(model, torch.randn(2, 3, 416, 512, device='cuda'), mode, dtype)
    step()
    return launches(step)


def compiled():
    """Return how many graphs the blocks of a model make, and the launches and waits of a step, at two other sizes."""
    torch.manual_seed(0)
    model = XCiT(Arch(384, 2, 8, 16, out_indices=(0, 1)), out_strides=None).cuda().train()
    model.compile_blocks()
    for size in ((384, 640), (416, 512), (448, 640)):
        step = make_step(model, torch.randn(2, 3, *size, device='cuda'), 'training', 'bfloat16')
        step()
    return counters['stats']['unique_graphs'], *launches(step)


found = {}
for dtype in ('bfloat16', 'float16', 'float32'):
    for mode in ('training', 'inference'):
        for name in ('ours', 'authors'):
            (four, _), (five, waits) = (count(name, depth, dtype, mode) for depth in (4, 5))
            found[f'{dtype} {mode} {name}'] = dict(block=five - four, rest=5 * four - 4 * five, waits=waits)
xca.CHECK_EVERY = 1  # for digits that float32 loses
found['waits where every pass is checked'] = count('ours', 4, 'float32', 'training')[1]
found['compiled'] = compiled()
print(json.dumps(found))
