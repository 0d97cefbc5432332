"""The measure tool: what it measures, and in which units it says so."""
import json
from types import SimpleNamespace

import pytest
from mmengine.config import Config

from benchmarks import short_training
from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool


def test_measuring_prints_what_it_saw(demo_data, tmp_path):
    out = tmp_path / 'measured.json'
    done = run_tool('measure.py', TINY_CONFIG, '--data-root', demo_data, '--iterations', 3, '--images', 1, '--out', out)
    result = json.loads(out.read_text())
    assert result['backbone_errors']['float32'] < 5e-6 and result['backbone_errors']['float32 gradient'] < 5e-5
    assert result['backbone_errors']['autocast bfloat16'] < 0.1
    assert all(error > 0 for error in result['backbone_errors'].values())
    training = result['training']
    assert len(training['losses']) == training['iterations'] == 3 and training['batch_size'] == 2
    assert 0 < training['seconds_per_iteration'] < 60 and 0 < training['seconds_per_image'] < 60
    assert 0.1 < training['peak_memory_gib'] < 8
    assert f' {training["losses"][0]:.3f} to {training["losses"][-1]:.3f}\n' in done.stdout


@pytest.mark.parametrize('gpu', (False, True))
def test_units_of_what_is_measured(gpu, monkeypatch):
    """The log has seconds of a batch and MiB of a GPU; the system has bytes."""
    curves = {'time': [(1, 9.), (2, 0.5), (3, 0.25)], 'data_time': [(1, 2.), (2, 0.1), (3, 0.2)],
              'loss': [(1, 4.), (2, 3.), (3, 2.)],
              'val/time': [(1, 7.), (3, 0.75)], 'val/data_time': [(3, 0.1)], 'val/mIoU': [(1, 10.), (3, 20.)],
              'coco/bbox_mAP': [(3, 0.5)], 'lr': [(1, 1.)]}
    if gpu:
        curves['memory'] = [(1, 2048), (2, 5120), (3, 1024)]
    trained = []
    monkeypatch.setattr(short_training, 'build_runner', lambda cfg: SimpleNamespace(
        train=lambda: trained.append(True), max_iters=3))
    monkeypatch.setattr(short_training, 'read_curves', lambda folder: curves if trained else {})
    monkeypatch.setattr(short_training, 'own_peak_memory', lambda: 3 * 2**30)
    cfg = Config(dict(work_dir='run', train_dataloader=dict(batch_size=2), val_dataloader=dict(batch_size=3)))
    assert short_training.train_and_measure(cfg) == dict(
        batch_size=2, iterations=3, seconds_per_iteration=0.5, seconds_per_image=0.25, peak_memory_gib=5 if gpu else 3,
        iteration_seconds=[9., 0.5, 0.25], waiting_seconds=[2., 0.1, 0.2], losses=[4., 3., 2.],
        metrics={'mIoU': 20., 'coco/bbox_mAP': 0.5})
