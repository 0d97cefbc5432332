"""The benchmark on tiny models: its numbers, what is compared, and runtimes with our exported model."""
import gc
import json
import math
import weakref
from dataclasses import replace

import pytest
import torch
from mmengine.device import get_device
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import cells, detector, growth, models, runtimes
from benchmarks.costs import multiply_adds
from helpers.models import TINY
from helpers.tools import run_tool
from xcit_dense import ReferenceXCiT, XCiTClassifier, get_arch, set_fast
from xcit_dense._utils.machine import has_bfloat16
from xcit_dense.errors import ConfigError
from xcit_dense.runtime import openvino_core

BN = dict(norm_cfg=dict(type='BN'))
ARCH = get_arch(dict(TINY, depth=4, patch_size=16))
on_a_cpu = pytest.mark.skipif(get_device() != 'cpu', reason='there is a GPU')


@pytest.mark.parametrize('most', (0, 1, 2, 3, 7, 8, 63, 100))
def test_largest_batch(most):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= most

    assert detector.largest(fits, 2, 64) == min(most, 64)
    assert len(tried) < 14 and max(tried) <= 64


@pytest.mark.parametrize('name, size, training, classes', (
    ('small_12_p8', (200, 333), True, 1000), ('nano_12_p16', (65, 96), False, None)))
def test_multiply_adds_of_the_released_form_are_pytorchs_count(name, size, training, classes):
    counter = FlopCounterMode(display=False)
    with torch.device('meta'), torch.set_grad_enabled(training), counter, set_fast(False):
        model = ReferenceXCiT(name, **BN) if classes is None else XCiTClassifier(name, num_classes=classes, **BN)
        outs = model.train(training)(torch.empty(1, 3, *size))
        if training:
            sum(out.square().mean() for out in outs).backward()
    counted, arch = counter.get_total_flops() // 2, get_arch(name)
    if training:  # PyTorch takes the gradient of a depthwise convolution's weight for that of a full one
        tokens, C = math.prod(-(-side // arch.patch_size) for side in size), arch.embed_dims
        counted -= arch.depth * 2 * 9 * tokens * C * (C - 1)
    assert multiply_adds(name, *size, training=training, authors=True, num_classes=classes) == counted
    assert multiply_adds(name, *size, training=training, num_classes=classes) < counted


def test_multiply_adds_take_the_form_with_fewer():
    arch, C, d = replace(ARCH, embed_dims=64), 64, 16
    for N, gram_saves in ((16, 0), (10_000, 2 * 10_000 * C * (C + d) - 3 * C**3 - 2 * C * C * d)):
        side = round(N**0.5) * 16
        saved = multiply_adds(arch, side, side, authors=True) - multiply_adds(arch, side, side)
        assert saved == 64 * C * N + arch.depth * gram_saves  # and the positions


def test_saved_bytes_are_storages_that_are_neither_given_nor_counted_before():
    """What was saved is not kept after it was counted: an operator's own output must not refer to itself."""
    outputs = []

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 3, 8, 8))

        def forward(self, x):
            x = x * self.weight  # both factors are given
            y = x.exp()
            outputs.append(weakref.ref(y))
            return (y.view(-1) * x.view(-1).exp(), )  # two results of exp, each also a factor

    images = torch.randn(4, 3, 8, 8)
    assert cells.saved_bytes(Model(), images, 'float32') == 2 * images.nbytes
    gc.collect()
    assert outputs[0]() is None


@pytest.mark.parametrize('mode, dtype', (('inference', 'float32'), ('training', 'float32'), ('training', 'bfloat16'),
                                         ('training', 'float16')))
def test_cell_compares_models_of_the_same_parameters(mode, dtype):
    cell = cells.measure_cell(ARCH, (64, 80), batch=2, dtype=dtype, mode=mode, names=['ours', 'authors'], runs=2,
                                  rates=dict(matrix=1e9, copy=1e9))
    ours, plain = cell['rows']
    assert (cell['tokens'], ours['name'], plain['name']) == (20, 'ours', 'authors')
    for row in cell['rows']:
        assert 0 < row['fastest'] <= row['seconds'] <= row['slowest']
        assert row['times_as_fast'] == plain['seconds'] / row['seconds']
    assert 0 < ours['error'] < (1e-5 if dtype == 'float32' else 5e-2)
    assert ours['share_of_matrix_rate'] == ours['multiply_adds'] / 1e9 / ours['seconds']
    assert ours['multiply_adds'] <= plain['multiply_adds'] == 2 * multiply_adds(
        ARCH, 64, 80, training=mode == 'training', authors=True)
    assert ('error' in plain) == (dtype != 'float32')  # then both err
    if mode == 'training':
        assert 0 < ours['gradient_error'] < (1e-5 if dtype == 'float32' else 0.2)
        assert ours['saved_share'] == ours['saved_bytes'] / plain['saved_bytes']
        assert plain['saved_bytes'] > 4 * 20 * 32 * 20 * (2 if dtype == 'float32' else 1)


def test_a_wrong_model_shows_in_the_error_and_one_that_does_not_fit_is_left_out(monkeypatch):
    class TooLarge(ReferenceXCiT):
        def forward(self, x):
            raise torch.OutOfMemoryError

    def rows(mode):
        return cells.measure_cell(ARCH, (64, 64), batch=1, dtype='float32', mode=mode, names=['ours', 'authors'],
                                  runs=1)['rows']

    monkeypatch.setattr(ReferenceXCiT, 'load_state_dict', lambda self, state: None)
    assert rows('inference')[0]['error'] > 1e-2
    monkeypatch.setitem(models.RIVALS, 'authors', lambda arch: TooLarge(arch, **BN))
    ours, plain = rows('training')
    assert plain == dict(name='authors', failed='out of memory')
    assert ours['seconds'] > 0 and 'times_as_fast' not in ours


@pytest.mark.integration
@on_a_cpu
def test_peak_memory_is_that_of_the_step():
    """A fresh process: neither what this one used before nor the model counts."""
    torch.ones(2**28).sum()
    peak = growth.peak_bytes('authors', ARCH, (512, 512), batch=1, dtype='float32', mode='training')
    kept = cells.saved_bytes(ReferenceXCiT(ARCH, **BN), torch.randn(1, 3, 512, 512), 'float32')
    assert kept < peak < 3 * kept


@on_a_cpu
def test_detectors_are_not_measured_on_a_cpu_by_mistake():
    with pytest.raises(ConfigError, match='--detector any'):
        detector.check_detector_device(force=False)
    detector.check_detector_device(force=True)


@pytest.mark.slow
def test_tool_writes_numbers_tables_and_pictures(tmp_path):
    done = run_tool('benchmark.py', '--sizes', 'nano_12', '--patches', '16', '--images', '64x64', '--runs', '1',
                    '--batch', '1', '--growth', '--max-tokens', '1050', '--modes', 'inference', '--out', tmp_path)
    result = json.loads((tmp_path / 'benchmark.json').read_text())
    types = ['bfloat16'] if torch.cuda.is_available() else ['float32', 'bfloat16'][:1 + has_bfloat16('cpu')]
    assert [cell['dtype'] for cell in result['cells']] == types and result['settings']['runs'] == 1
    for cell in result['cells']:
        assert (cell['arch'], cell['image'], cell['mode'], cell['tokens']) == ('nano_12_p16', [64, 64], 'inference', 16)
        assert [row['name'] for row in cell['rows']] == ['ours', 'authors'] and cell['rows'][0]['error'] < 5e-2
        assert result['machine']['rates'][cell['dtype']]['matrix'] > 1e8
    assert all(row['peak_bytes'] > 0 for point in result['growth'] for row in point['rows'])
    tables = (tmp_path / 'benchmark.md').read_text()
    assert tables in done.stdout and '## Inference' in tables and '## Growth: nano_12_p16, inference' in tables
    pictures = list(tmp_path.glob('*.png'))
    assert len(pictures) == len(types) and all(file.read_bytes().startswith(b'\x89PNG') for file in pictures)
    assert f'[1/{2 * len(types)}] nano_12_p16 64x64 batch 1' in done.stdout


@pytest.mark.parametrize('options, words', (
    (('--images', '8x8'), ('32x32', "'8x8'")),
    (('--runtimes', 'tensorflow', '--modes', 'inference'), ('tensorflow', 'openvino_bf16')),
    (('--runtimes', 'onnxruntime'), ('--modes inference', )),
    (('--runtimes', '--modes', 'inference', '--dtype', 'bfloat16'), ('float32', ))))
def test_tool_says_what_it_takes(call_tool, tmp_path, options, words):
    code, message = call_tool('benchmark.py', *options, '--out', tmp_path)
    assert code == (1 if '--runtimes' in options else 2) and all(word in message for word in words), message
    assert not list(tmp_path.iterdir())


@on_a_cpu
@pytest.mark.slow
def test_every_runtime_gives_our_maps():
    pytest.importorskip('onnxruntime')
    pytest.importorskip('openvino')
    cell = cells.measure_cell(ARCH, (64, 80), batch=1, dtype='float32', mode='inference',
                              names=['ours', 'authors', *runtimes.RUNTIMES], runs=2)
    rows = {row['name']: row for row in cell['rows']}
    for name in runtimes.RUNTIMES:
        row = rows[name]
        if 'failed' in row:
            assert name == 'openvino_bf16' and row['failed'].endswith('computes in f32, not in bf16'), row['failed']
            assert 'BF16' not in openvino_core().get_property('CPU', 'OPTIMIZATION_CAPABILITIES')
            continue
        exact = name in ('onnxruntime', 'openvino', 'openvino_fixed')
        assert (0 if exact else 1e-4) < row['error'] < (1e-5 if exact else 0.1), name
        assert (row.get('file_bytes', 0) > 10_000) == (name != 'eager_bf16')
        assert row['times_ours'] == rows['ours']['seconds'] / row['seconds']
