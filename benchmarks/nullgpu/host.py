"""Prints the processor time of the host for a step on the GPU that computes nothing: what a faster GPU waits for.

Run by hand: python benchmarks/nullgpu/run.py benchmarks/nullgpu/host.py
"""
import statistics
import time
import warnings

import torch

from benchmarks.cells import make_step
from benchmarks.models import build_models
from xcit_dense import XCiT

warnings.filterwarnings('ignore')

for arch in ('small_12_p16', 'medium_24_p16'):
    images = torch.randn(2, 3, 800, 1280, device='cuda')
    models = build_models(arch, 'training', ['ours', 'authors'])
    models['ours, --compile'] = XCiT(arch).cuda().train()
    models['ours, --compile'].compile_blocks()
    for mode in ('training', 'inference'):
        steps = {name: make_step(model.train(mode == 'training'), images, mode, 'bfloat16')
                 for name, model in models.items()}
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            print(f'{arch} {mode} {name}: first step {time.perf_counter() - start:.1f} s')
        times = {name: [] for name in steps}
        for _ in range(15):
            for name, step in steps.items():
                start = time.process_time()
                step()
                times[name].append(time.process_time() - start)
        print(arch, mode, {name: f'{1000 * statistics.median(values):.1f} ms' for name, values in times.items()})
