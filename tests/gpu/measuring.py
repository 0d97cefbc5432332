"""What the stages that measure share: models beside each other, their goals, and the rates of the device."""
import gc
import math
from itertools import product

import pytest
import torch

from benchmarks.cells import DTYPES, measure_cell
from benchmarks.costs import copy_rate, matrix_rate
from xcit_dense._utils.text import counted
from xcit_dense.archs import get_arch
from xcit_dense.config.options import check_compiler
from xcit_dense.errors import ConfigError

#: What everything is measured in.
DTYPE = 'bfloat16'
#: Sizes of images and how many are in a batch, those of detection and segmentation first.
SIZES = ((800, 1280), 2), ((512, 512), 16), ((512, 512), 2), ((768, 768), 8)
OTHERS = 'timm', 'swin_t', 'resnet50', 'convnext_t'
#: How many times as fast as the authors' form a step must be by patch size, as counts of launches and bytes call
#: possible, and when both are compiled; and the share of its memory that a training step may take.
EAGER, COMPILED, MEMORY = {8: 1.5, 16: 1.2}, 1.0, {8: 0.50, 16: 0.65}


def rates(check) -> dict:
    """Return ``'matrix'``, multiply-adds per second, and ``'copy'``, bytes per second; made up for tiny runs."""
    return dict(matrix=1e11, copy=1e10) if check.tiny else dict(matrix=matrix_rate(DTYPES[DTYPE]), copy=copy_rate())


def describe(rates) -> str:
    return f'{rates["matrix"] / 1e12:.3g} T multiply-adds/s, copies {rates["copy"] / 1e9:.4g} GB/s'


def free_memory():
    """Return the memory of models that are not used any more to the GPU."""
    gc.collect()  # compiled models refer to themselves
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def compare(check, archs, rivals, sizes, compiled: bool = False):
    """Measure training and inference of our models, the authors' form, and rivals beside patch 16; judge the goals."""
    if compiled:
        try:
            check_compiler()
        except ConfigError as error:
            pytest.skip(str(error))
    if check.tiny:
        # a compiler takes minutes for twelve blocks on a CPU
        sizes, archs = [((64, 96), 2)], [dict(embed_dims=32, depth=4, num_heads=4) if compiled else 'nano_12_p16']
        rivals = () if compiled else rivals
    cells, known = [], rates(check)
    for (image, batch), arch, mode in product(sizes, archs, ('training', 'inference')):
        beside = [name for name in rivals if name == 'timm' or get_arch(arch).patch_size == 16]
        cells.append(measure_cell(arch, image, batch=batch, mode=mode, names=['ours', 'authors', *beside], dtype=DTYPE,
                                  compiled=compiled, rates=known, runs=check.choose(8, 1), warmup=check.choose(3, 0)))
        check.record(f'{counted(len(cells), "cells")}; {describe(known)}', [
            {'cell': _label(cell), 'images/s': f'{cell["batch"] / row.get("seconds", math.inf):.1f}', **figures(row)}
            for cell in cells for row in cell['rows']], cells=cells)
        free_memory()
    if not check.tiny:
        missed = [f'{_label(cell)}: {words}' for cell in cells for words, reached in goals_of(cell) if not reached]
        assert not missed, f'missed: {"; ".join(missed)}'


def figures(row) -> dict:
    return {name.replace('_', ' '): f'{value:.3g}' if isinstance(value, float) else str(value)
            for name, value in row.items()}


def _label(cell):
    return f'{cell["arch"]} {"x".join(map(str, cell["image"]))} batch {cell["batch"]} {cell["mode"]}'


def goals_of(cell) -> list:
    """Return the goals of a cell of the benchmark: pairs of what was found and whether the goal is reached."""
    found, goals = {row['name']: row for row in cell['rows']}, []
    patch_size = get_arch(cell['arch']).patch_size
    for form, wanted in (('', EAGER[patch_size]), (', compiled', COMPILED)):
        ours = found.get(f'ours{form}', {})
        if 'failed' in ours:
            goals.append((f'ours{form}: {ours["failed"]}', False))
        beside = [('authors', wanted)]
        if (cell['arch'], cell['image'], cell['mode']) == ('small_12_p16', [800, 1280], 'training'):
            beside.append(('swin_t', 1))
        for rival, least in beside:
            theirs = found.get(f'{rival}{form}', {})
            # the host, which is the slower of the two at small batches, says nothing about kernels
            key = 'gpu_seconds' if 'gpu_seconds' in ours and 'gpu_seconds' in theirs else 'seconds'
            if key in ours and key in theirs:
                times = theirs[key] / ours[key]
                words = f'ours{form} is {times:.2f} times as fast as {rival}{form}, not {least:g}'
                goals.append((words, times >= least))
    share, most = found['ours'].get('peak_share'), MEMORY[patch_size]
    if cell['mode'] == 'training' and share is not None:
        goals.append((f'ours has {share:.2f} of the peak memory of the authors\' form, not {most:g}', share <= most))
    return goals
