"""Prints as JSON what a step launches on the GPU that computes nothing, by type and mode: run by test_launches.py."""
import json
import warnings

import torch
from run import launches

from xcit_dense import Arch
from xcit_dense.benchmark.cells import make_step
from xcit_dense.benchmark.models import build_models

warnings.filterwarnings('ignore')


def count(name, depth, dtype, mode):
    """Return launches and waits of a step of small 12 patch 16 with another depth, on two images."""
    arch = Arch(384, depth, 8, 16, out_indices=(0, 1, 2, depth - 1))
    model = build_models(arch, mode, [name])[name]
    step = make_step(model, torch.randn(2, 3, 416, 512, device='cuda'), mode, dtype)
    step()
    return launches(step)


found = {}
for dtype in ('bfloat16', 'float16', 'float32'):
    for mode in ('training', 'inference'):
        for name in ('ours', 'plain'):
            (four, _), (five, waits) = (count(name, depth, dtype, mode) for depth in (4, 5))
            found[f'{dtype} {mode} {name}'] = dict(block=five - four, rest=5 * four - 4 * five, waits=waits)
print(json.dumps(found))
