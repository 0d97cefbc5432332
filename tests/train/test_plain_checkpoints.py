"""Checkpoints hold only plain values, so that torch reads them by default; a resumed run finds everything as it was."""
from collections import OrderedDict
from enum import Enum
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from torch.serialization import get_unsafe_globals_in_checkpoint
from torchvision import tv_tensors

from helpers.models import assert_equal
from helpers.paths import ROOT, TINY_SEG_CONFIG
from helpers.runs import At, assert_same_run, make_config, terminate, train, whole_run
from helpers.tools import forget_run
from xcit_dense.errors import Stopped
from xcit_dense.weights import newest_checkpoint, read_checkpoint
from xcit_dense.weights.plain import from_plain, to_plain


class Colour(Enum):
    RED = 'red'


class Own:
    pass


def history(*values):
    buffer = HistoryBuffer(max_length=9)
    for value in values:
        buffer.update(value)
    return buffer


def load(path):
    assert get_unsafe_globals_in_checkpoint(path) == []
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize('hooks', ([], [dict(type='EMAHook')], [dict(type='AverageHook')]))
def test_torch_reads_all_checkpoints_of_a_run(hooks, demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, custom_hooks=hooks, **{
        'default_hooks.checkpoint.save_best': 'mIoU'})
    train(cfg)
    files = sorted(tmp_path.glob('*.pth'))
    assert {path.name.split('_')[0] for path in files} == {'best', 'iter'}
    for path in files:
        checkpoint = load(path)
        assert checkpoint['meta']['dataset_meta']['classes'][0] == 'background'
        assert ('ema_state_dict' in checkpoint) == bool(hooks)
        assert type(checkpoint['message_hub']['runtime_info']['eta']) is float


class Keeper(Hook):
    """Keeps all kinds of things where mmengine saves them."""

    values = dict(array=np.arange(6, dtype=np.float32).reshape(2, 3), number=np.float32(0.1), names={'a', 'b'},
                  deep=[dict(x=(np.ones(2, bool), history(1., 2.)))], path=PurePosixPath('a/b'), colour=Colour.RED)
    resumed = None

    def before_train(self, runner):
        infos = runner.message_hub.runtime_info
        self.resumed = {key: infos[key] for key in self.values if key in infos}
        for key, value in {**self.values, 'own': Own()}.items():
            runner.message_hub.update_info(key, value)


def test_what_hooks_keep_comes_back(demo_data, tmp_path, capsys):
    cfg, first, second = make_config(TINY_SEG_CONFIG, demo_data, tmp_path), Keeper(), Keeper()
    with pytest.raises(Stopped):
        train(cfg, first, At(2, terminate))
    assert first.resumed == {}
    infos = load(newest_checkpoint(tmp_path))['message_hub']['runtime_info']
    assert 'own' not in infos and 'message_hub.runtime_info.own' in (said := capsys.readouterr().out)
    assert 'test_plain_checkpoints.Own' in said
    train(cfg, second, resume=True)
    got = second.resumed
    assert (got['array'] == Keeper.values['array']).all() and got['array'].dtype == np.float32
    assert got['number'] == float(np.float32(0.1)) and got['names'] == {'a', 'b'} and got['path'] == 'a/b'
    assert got['colour'] == 'red'
    (array, buffer), = (part['x'] for part in got['deep'])
    assert array.dtype == bool and type(buffer) is HistoryBuffer and buffer.mean() == 1.5


def test_the_curves_go_on(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(Stopped):
        train(cfg, At(3, terminate))
    forget_run()  # runs of one second share their curves
    got = train(cfg, resume=True)
    forget_run()
    wanted = train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path / 'whole'))
    scalars = [run['message_hub']['log_scalars'] for run in (got, wanted)]
    assert list(scalars[0]) == list(scalars[1])
    for name in ('train/loss', 'train/lr'):
        assert_equal(*(run[name] for run in scalars), name)
        assert len(scalars[0][name]['_log_history']) == 4


def test_a_checkpoint_of_the_format_before_is_resumed(demo_data, tmp_path, tmp_path_factory):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(Stopped):
        train(cfg, At(3, terminate))
    path = newest_checkpoint(tmp_path)
    torch.save(from_plain(read_checkpoint(path)), path)  # log buffers and arrays themselves
    assert any('HistoryBuffer' in name for name in get_unsafe_globals_in_checkpoint(path))
    forget_run()
    got, wanted = train(cfg, resume=True), whole_run('iterations', demo_data, tmp_path_factory)
    assert_same_run(got, wanted)
    assert len(got['message_hub']['log_scalars']['train/loss']['_log_history']) == 4


def test_a_file_of_the_first_version_is_as_it_was():
    checkpoint = read_checkpoint(ROOT / 'tests/golden/run_of_0_1.pth')
    before = checkpoint['message_hub']['log_scalars']
    assert all(type(buffer) is HistoryBuffer for buffer in before.values())
    back = from_plain(to_plain(checkpoint))
    assert_equal(back['state_dict'], checkpoint['state_dict'], 'state_dict')
    for name, buffer in back['message_hub']['log_scalars'].items():
        assert all((vars(buffer)[key] == vars(before[name])[key]).all() for key in ('_log_history', '_count_history'))


@pytest.mark.parametrize('value, plain', (
    (np.int64(3), 3), (np.float64(0.1), 0.1), (np.bool_(True), True), (np.str_('x'), 'x'), (Path('a'), 'a'),
    (ConfigDict(a=(1, [2])), dict(a=(1, [2]))), (OrderedDict(a=1), OrderedDict(a=1)),
    (torch.Size([1]), torch.Size([1])), (torch.float16, torch.float16), ({np.int64(1): 2}, {1: 2})))
def test_a_plain_form(value, plain, tmp_path):
    torch.save(to_plain(dict(a=value)), tmp_path / 'a.pth')
    got = load(tmp_path / 'a.pth')['a']
    assert got == plain and type(got) is type(plain)


def test_what_the_frameworks_read_is_readable():
    meta = dict(palette=np.array([[1, 2, 3]]), names=np.array(['a']), ids={2, 1})
    assert to_plain(dict(meta=dict(dataset_meta=meta)))['meta']['dataset_meta'] == dict(
        palette=[[1, 2, 3]], names=['a'], ids=[1, 2])


@pytest.mark.parametrize('array', (np.arange(3, dtype='>i4'), np.arange(4)[::-1], np.zeros((0, 2), np.uint16),
                                   np.array(3.), np.array([1j])))
def test_an_array_of_any_form_comes_back(array, tmp_path):
    torch.save(to_plain(dict(a=array)), tmp_path / 'a.pth')
    got = from_plain(load(tmp_path / 'a.pth'))['a']
    assert got.dtype == array.dtype.newbyteorder('=') and got.shape == array.shape and (got == array).all()


def test_tensors_with_a_type_of_their_own_become_plain(tmp_path):
    boxes = tv_tensors.BoundingBoxes(torch.ones(1, 4), format='XYXY', canvas_size=(3, 3))
    torch.save(to_plain(dict(boxes=boxes, weight=torch.nn.Parameter(torch.ones(1)))), tmp_path / 'a.pth')
    got = load(tmp_path / 'a.pth')
    assert type(got['boxes']) is torch.Tensor and torch.equal(got['boxes'], torch.ones(1, 4))
    assert type(got['weight']) is torch.nn.Parameter


@pytest.mark.parametrize('value', (Own(), print, np.array(['a']), np.longdouble(1), [Own()], (1, {Own()}), {Own(): 1},
                                   np.ma.masked_array([1, 2], [0, 1])))
def test_what_has_no_plain_form_is_left_out(value, tmp_path, capsys):
    torch.save(to_plain(dict(a=dict(b=value, c=1))), tmp_path / 'a.pth')
    left = load(tmp_path / 'a.pth')['a']
    assert left.pop('c') == 1 and not left.get('b') and 'a.b' in capsys.readouterr().out


@pytest.mark.parametrize('value', ({'xcit_dense.kind': 'history'}, {'xcit_dense.kind': ['array']},
                                   {'xcit_dense.kind': 'array', 'data': 1}, {'xcit_dense.kind': 'other'}))
def test_what_only_looks_like_ours_stays(value):
    assert from_plain([value]) == [value]
