"""Prints the processor time of the host and the launches of a step on the GPU that computes nothing, as a table.

A GPU that is faster than the host waits for it. Run by hand:

    python benchmarks/nullgpu/run.py benchmarks/nullgpu/host.py
"""
import gc
import statistics
import sys
import time
import warnings

import torch
from run import launched

from benchmarks.cells import make_step
from benchmarks.models import build_models
from xcit_dense.models import graphs

ROUNDS = 15
ROWS = {'ours': 'ours', 'ours, no graphs': 'ours, --no-graphs', 'authors': "the authors' form", 'swin_t': 'Swin-T',
        'resnet50': 'ResNet-50'}
warnings.filterwarnings('ignore')
graphs._first_difference = lambda *_: None  # values mean nothing here


def steps_of(arch, image, batch, mode):
    """Return a step of each model by name, after those in which a graph is captured."""
    images, steps = torch.randn(batch, 3, *image, device='cuda'), {}
    for name in ROWS:
        model = build_models(arch, mode, [name.partition(',')[0]]).popitem()[1]
        if name == 'ours':
            model.graphs = graphs.Graphs(model, lambda line: print(line, file=sys.stderr))
        steps[name] = make_step(model, images, mode, 'bfloat16')
        for _ in range(graphs.AFTER + 3):
            steps[name]()
    return steps


def measure(arch, image, batch, mode):
    """Return the median milliseconds of the host, and the launches, of a step of each model, run in turn."""
    steps = steps_of(arch, image, batch, mode)
    gc.collect()
    gc.freeze()
    times = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            start = time.process_time()
            step()
            times[name].append(1000 * (time.process_time() - start))
    gc.unfreeze()
    return {name: (statistics.median(times[name]), len(launched(step))) for name, step in steps.items()}


def memory(arch, images, batch=2):
    """Return the GiB that graphs of a training keep, after each of several sizes of images."""
    model, found = build_models(arch, 'training', ['ours'])['ours'], []
    model.graphs = graphs.Graphs(model, lambda line: None)
    for image in images:
        step = make_step(model, torch.randn(batch, 3, *image, device='cuda'), 'training', 'bfloat16')
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved()
        for _ in range(graphs.AFTER + 2):
            step()
        del step
        torch.cuda.empty_cache()
        found.append(round((torch.cuda.memory_reserved() - before) / 2**30, 2))
    return found


def main():
    """Print the table, and the memory of graphs."""
    for arch in ('small_12_p16', 'small_12_p8'):
        sizes = (800, 1280), (1280, 800), (800, 1216), (800, 1088), (736, 1280)
        print(f'{arch}, batch 2: GiB that graphs for {", ".join(f"{h} x {w}" for h, w in sizes)} add: '
              f'{memory(arch, sizes)}')
    print('| mode | arch | image | batch | ' + ' | '.join(ROWS.values()) + ' |\n' + '|---' * (4 + len(ROWS)) + '|')
    for mode in ('training', 'inference'):
        for arch in ('small_12_p16', 'small_12_p8'):
            for image in ((512, 512), (800, 1280)):
                for batch in (2, 8):
                    found = measure(arch, image, batch, mode).values()
                    torch.cuda.empty_cache()
                    print(f'| {mode} | {arch} | {image[0]} x {image[1]} | {batch} | ' + ' | '.join(
                        f'{host:.1f} ms, {count:,}' for host, count in found) + ' |', flush=True)


if __name__ == '__main__':
    main()
