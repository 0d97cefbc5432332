"""What the options of the tools become: each value where the run reads it."""
import os
from argparse import ArgumentParser, Namespace
from types import SimpleNamespace

import pytest
import torch
from mmengine.device import get_device
from mmengine.device import utils as device_utils

from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.cli import common
from xcit_dense.config import loading
from xcit_dense.config.loading import load_config
from xcit_dense.data import demo
from xcit_dense.errors import ConfigError
from xcit_dense.train import runner as runner_module
from xcit_dense.train import work_dirs


@pytest.fixture
def ran(monkeypatch, demo_data, tmp_path):
    """A function that runs the train tool without the training, and gives the config and what was done before."""
    for name in ('a.pth', 'run/epoch_1.pth', f'work_dirs/{TINY_CONFIG.stem}/epoch_1.pth'):  # to resume
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(meta={}, optimizer={}), tmp_path / name)

    def run(*args, check=True):
        found = SimpleNamespace(cfg=None, done=[])

        def build(cfg):
            found.cfg = cfg
            return SimpleNamespace(train=lambda: found.done.append('trained'), hooks=[])

        monkeypatch.setattr(runner_module, 'build_runner', build)
        monkeypatch.setattr(work_dirs, 'check_work_dir', lambda cfg, overwrite: found.done.append(
            ('checked', cfg.work_dir, bool(cfg.get('resume')), overwrite)))
        found.tool = run_tool('train.py', TINY_CONFIG, '--data-root', demo_data, *args, cwd=tmp_path, check=check,
                              env=dict(XDG_CACHE_HOME=os.environ['XDG_CACHE_HOME']))
        return found

    return run


@pytest.mark.parametrize('name, before, after', (
    ('cpu', '2,3', '-1'), ('cuda:1', None, '1'), ('cuda:1', 'GPU-a,GPU-b', 'GPU-b'), ('cuda:2', '2,3', '-1'),
    ('cuda', '2,3', '2,3'), (None, '2,3', '2,3')))
def test_a_device_is_what_cuda_shows(name, before, after, monkeypatch):
    monkeypatch.setattr(device_utils, 'DEVICE', 'npu')
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: os.environ['CUDA_VISIBLE_DEVICES'] != '-1')
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', before or '')
    if after == '-1' and name != 'cpu':
        with pytest.raises(ConfigError, match='--device cuda:2: torch finds no such GPU'):
            common.use_device(name)
    else:
        common.use_device(name, 'none' if name and ':' in name else 'pytorch')
    assert os.environ['CUDA_VISIBLE_DEVICES'] == after and get_device() == ('cpu' if name == 'cpu' else 'npu')
    with pytest.raises(ConfigError, match='set CUDA_VISIBLE_DEVICES instead'):
        common.use_device('cuda:0', 'pytorch')


def test_seed_and_device_of_a_training(ran, monkeypatch):
    monkeypatch.setattr(device_utils, 'DEVICE', 'npu')
    assert ran('--seed', '0', '--device', 'cpu').cfg.randomness.seed == 0 and get_device() == 'cpu'
    assert 'randomness.seed' in ran('--seed', '-1', check=False).tool.stdout
    assert '--minutes must be a number above 0, got -1' in ran('--minutes', '-1', check=False).tool.stdout


@pytest.mark.parametrize('args, resume, load_from, overwrite', (
    ('', False, None, False), ('--resume a.pth', 'a.pth', None, False),
    ('--cfg-options resume=True load_from=a.pth', True, 'a.pth', False),
    ('--resume --cfg-options load_from=a.pth', 'auto', 'a.pth', False), ('--overwrite', False, None, True),
    ('--overwrite --resume', 'auto', None, True)))
def test_train_goes_on_or_begins(args, resume, load_from, overwrite, ran):
    """The runner moves what --overwrite allows it to (tests/train/test_work_dirs.py)."""
    found = ran('--work-dir', 'run', *(['--minutes', '3'] if resume else []), *args.split())
    assert found.done == [('checked', 'run', bool(resume), overwrite), 'trained'] and 'timed' not in found.cfg
    assert ('--minutes 3 is not used: a resumed run keeps its length' in found.tool.stdout) == bool(resume)
    assert found.cfg.get('resume', False) == resume and found.cfg.get('load_from') == load_from


@pytest.mark.parametrize('options, pretrained, scaled', (
    ((), True, False), (('--no-pretrained', '--auto-scale-lr'), False, True), (('--resume', ), True, False)))
def test_train_takes_its_options(options, pretrained, scaled, ran):
    """The runner alone scales the rate if it is asked to, otherwise it follows the batch."""
    init = 'model.backbone.init_cfg'
    values = f'{init}.type=Pretrained', f'{init}.checkpoint=weights.pth', 'train_cfg.max_epochs=7'
    plain, cfg = (ran(*options, *batch, '--cfg-options', *values).cfg for batch in ((), ('--batch-size', '4')))
    assert bool(cfg.model.backbone.init_cfg) == pretrained and bool(cfg.auto_scale_lr.get('enable')) == scaled
    assert cfg.train_cfg.max_epochs == 7 and cfg.launcher == 'none'
    assert cfg.work_dir == f'work_dirs/{TINY_CONFIG.stem}'
    assert cfg.optim_wrapper.optimizer.lr == (1 if scaled else 2) * plain.optim_wrapper.optimizer.lr


def test_train_needs_no_test_set_and_says_which_data_is_missing(ran):
    assert ran('--cfg-options', 'test_dataloader.dataset.ann_file=absent.json').done[-1] == 'trained'
    found = ran('--cfg-options', 'val_dataloader.dataset.ann_file=absent.json', check=False)
    assert found.tool.returncode == 1 and 'absent.json' in found.tool.stdout and 'trained' not in found.done


def test_only_the_first_process_looks_after_the_work_dir(ran, monkeypatch):
    monkeypatch.setenv('RANK', '1')
    assert ran('--launcher', 'pytorch', '--overwrite').done == ['trained']
    monkeypatch.setenv('RANK', '0')
    assert len(ran('--launcher', 'pytorch', '--overwrite').done) == 2


@pytest.mark.parametrize('given, of_config, wanted', ((None, None, 'work_dirs/name'), (None, 'theirs', 'theirs'),
                                                      ('mine', 'theirs', 'mine')))
def test_the_work_dir(given, of_config, wanted, tmp_path, monkeypatch):
    monkeypatch.delenv('LOCAL_RANK', raising=False)
    config = tmp_path / 'name.py'
    config.write_text(f"work_dir = '{of_config}'\n" if of_config else '')
    cfg = load_config(config, work_dir=given)
    for rank in (3, 4):
        common.set_run_options(cfg, Namespace(launcher='mpi', local_rank=rank, config=str(config)))
        assert (cfg.work_dir, cfg.launcher) == (wanted, 'mpi')
    assert os.environ['LOCAL_RANK'] == '3'  # the launcher's counts


@pytest.mark.parametrize('items, wanted', (
    ('a.b=2 a=x=y', {'a.b': 2, 'a': 'x=y'}), ('a=[1,2] b=(3,4)', dict(a=[1, 2], b=(3, 4))),
    ('a=1 a=2', dict(a=2)), ('a= a.b={}.pth', {'a': '', 'a.b': '{}.pth'}),
    ('a=None b=True --cfg-options c=0.5', dict(a=None, b=True, c=0.5))))
def test_config_options(items, wanted):
    parser = ArgumentParser()
    common.add_config_options(parser)
    args = parser.parse_args(['config', '--cfg-options', *items.split()])
    assert loading.read_config_options(args.cfg_options, args.config) == wanted


def test_demo_data_has_as_many_and_as_large_images_as_asked(monkeypatch):
    made = []
    monkeypatch.setattr(demo, 'make_demo_data', lambda *args: made.append(args))
    for options, more in (((), (demo.CLASSES, False)), (('--classes', 'star', 'disc', '--grey'),
                                                        (['star', 'disc'], True))):
        done = run_tool('make_demo_data.py', 'out', '--train', 5, '--val', 4, '--size', 64, '--seed', 3, *options)
        assert made.pop() == ('out', 5, 4, 64, 3, *more) and '5 training and 4 validation' in done.stdout


@pytest.mark.parametrize('item, words', (
    ('foo', ('KEY=VALUE', "'foo'")), ('=3', ("'=3'", )), ('x=[1,2', ('brackets', '"x=[1,2]"')),
    ('a=dict(b=1)', (f"_base_ = '{TINY_CONFIG}'", 'a=dict(b=1)')),
    ('custom_hooks=[dict(type="EMAHook")]', ('does not accept dicts', 'custom_hooks=[dict(type="EMAHook")]')),
    ("model={'type': 'x'}", ('does not accept dicts', 'Write the dict into your own config'))))
def test_options_that_cannot_be_read(item, words):
    done = run_tool('train.py', TINY_CONFIG, '--cfg-options', 'train_cfg.val_begin=2', item, check=False)
    assert done.returncode == 1 and done.message.startswith('error: --cfg-options')
    assert all(word in done.message for word in words)
