"""Checkpoints hold only plain values, so that torch reads them by default; a resumed run finds everything as it was."""
from collections import OrderedDict
from enum import Enum, IntEnum
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from torch.serialization import get_unsafe_globals_in_checkpoint
from torchvision import tv_tensors

from helpers.models import assert_equal
from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import NO_VALIDATION, assert_same_run, make_config, stop_after, train
from xcit_dense.weights import newest_checkpoint
from xcit_dense.weights.convert import from_plain, to_plain

Own = type('Own', (), {})


def load(path):
    assert get_unsafe_globals_in_checkpoint(path) == []
    return torch.load(path, weights_only=True)


def test_torch_reads_all_checkpoints_of_a_run(trained_segmentor, demo_data, tmp_path):
    train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, custom_hooks=[dict(type='EMAHook')], **{
        'default_hooks.checkpoint.save_best': 'mIoU'}))
    files = sorted(tmp_path.glob('*.pth'))
    assert {path.name.split('_')[0] for path in files} == {'best', 'iter'}
    for path in (*files, trained_segmentor[0] / 'iter_4.pth'):
        checkpoint = load(path)
        assert checkpoint['meta']['dataset_meta']['classes'][0] == 'background'
        assert ('ema_state_dict' in checkpoint) == (path in files)
        assert ('optimizer' in checkpoint) == ('best' not in path.name)
        assert type(checkpoint['message_hub']['runtime_info']['eta']) is float


class Keeper(Hook):
    """Keeps all kinds of things where mmengine saves them."""
    values = dict(array=np.arange(6, dtype=np.float32).reshape(2, 3), number=np.float32(0.1),
                  deep=[dict(x=(np.ones(2, bool), HistoryBuffer([1., 2.], [1, 1], max_length=9)))])
    resumed = None

    def before_train(self, runner):
        infos = runner.message_hub.runtime_info
        self.resumed = {key: infos[key] for key in self.values if key in infos}
        for key, value in {**self.values, 'own': Own()}.items():
            runner.message_hub.update_info(key, value)


def test_what_hooks_keep_comes_back_and_the_curves_go_on(demo_data, tmp_path, capsys):
    first, second = Keeper(), Keeper()
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path / 'whole', **NO_VALIDATION)
    wanted = train(cfg)
    cfg.work_dir = str(tmp_path / 'run')
    stop_after(3, cfg, first)
    assert first.resumed == {}
    infos = load(newest_checkpoint(tmp_path / 'run'))['message_hub']['runtime_info']
    assert 'own' not in infos and 'message_hub.runtime_info.own' in (said := capsys.readouterr().out)
    assert 'test_plain_checkpoints.Own' in said
    end, got = train(cfg, second, resume=True), second.resumed
    assert (got['array'] == Keeper.values['array']).all() and got['array'].dtype == np.float32
    assert got['number'] == float(np.float32(0.1))
    (array, buffer), = (part['x'] for part in got['deep'])
    assert array.dtype == bool and type(buffer) is HistoryBuffer and buffer.mean() == 1.5
    assert_same_run(end, wanted)
    got, wanted = (run['message_hub']['log_scalars'] for run in (end, wanted))
    assert list(got) == list(wanted) and len(got['train/loss']['_log_history']) == 4
    for name in ('train/loss', 'train/lr'):
        assert_equal(got[name], wanted[name], name)


def stored(value, path):
    torch.save(to_plain(dict(a=value)), path / 'a.pth')
    return load(path / 'a.pth')['a']


@pytest.mark.parametrize('value, plain', (
    (np.int64(3), 3), (np.float64(0.1), 0.1), (np.bool_(True), True), (np.str_('x'), 'x'),
    (ConfigDict(a=(1, [2])), dict(a=(1, [2]))), (OrderedDict(a=1), OrderedDict(a=1)),
    (torch.Size([1]), torch.Size([1])), (torch.float16, torch.float16), ({np.int64(1): 2}, {1: 2}),
    (Enum('Mode', dict(MAX='max'), type=str)('max'), 'max'), (IntEnum('Count', 'ONE')(1), 1),
    (Enum('Letter', 'A')(1), 1)))
def test_a_plain_form(value, plain, tmp_path):
    got = stored(value, tmp_path)
    assert got == plain and type(got) is type(plain)


def test_what_the_frameworks_read_is_readable():
    meta = dict(palette=np.array([[1, 2, 3]]), names=np.array(['a']), ids={2, 1})
    assert to_plain(dict(meta=dict(dataset_meta=meta)))['meta']['dataset_meta'] == dict(
        palette=[[1, 2, 3]], names=['a'], ids=[1, 2])


def test_arrays_and_tensors_of_any_form_come_back(tmp_path):
    """Tensors with a type of their own become plain."""
    for array in (np.arange(3, dtype='>i4'), np.arange(4)[::-1], np.zeros((0, 2), np.uint16), np.array(3.),
                  np.array([1j])):
        got = from_plain(stored(array, tmp_path))
        assert got.dtype == array.dtype.newbyteorder('=') and got.shape == array.shape and (got == array).all()
    boxes = stored(tv_tensors.BoundingBoxes(torch.ones(1, 4), format='XYXY', canvas_size=(3, 3)), tmp_path)
    assert type(boxes) is torch.Tensor and torch.equal(boxes, torch.ones(1, 4))
    assert type(stored(torch.nn.Parameter(torch.ones(1)), tmp_path)) is torch.nn.Parameter


@pytest.mark.parametrize('value', (Own(), print, Path('a'), np.array(['a']), np.longdouble(1), [Own()], (1, {Own()}),
                                   {Own(): 1}, np.ma.masked_array([1, 2], [0, 1])))
def test_what_has_no_plain_form_is_left_out(value, tmp_path, capsys):
    left = stored(dict(b=value, c=1), tmp_path)
    assert left.pop('c') == 1 and not left.get('b') and 'a.b' in capsys.readouterr().out
