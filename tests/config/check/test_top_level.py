"""Names at the top level of a config: misspelt ones, names of version 2, and what a run dumps, with all variables."""
import pytest
from mmengine.config import config

from helpers.paths import TINY_CONFIG
from helpers.recipes import LOADABLE
from xcit_dense.config.check import check_config
from xcit_dense.config.check.top_level import check_top_level
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError


def names_of(lines):
    return [line.partition(' = ')[0] for line in lines]


@pytest.mark.parametrize('wrong, right', [
    ('optim_wraper', 'optim_wrapper'), ('train_dataloder', 'train_dataloader'), ('param_schedular', 'param_scheduler'),
    ('defualt_hooks', 'default_hooks'), ('modle', 'model'), ('resum', 'resume'), ('custom_hook', 'custom_hooks')])
def test_misspelt_top_level_key(wrong, right, tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f"_base_ = '{TINY_CONFIG}'\n{wrong} = dict(a=1)\n{right} = None\n")
    line, = check_top_level(load_config(path))
    assert line == f"{wrong} = {{'a': 1}}: nothing reads it; did you mean {right}?"
    path.write_text(f"_base_ = '{TINY_CONFIG}'\n{wrong} = dict(a=1)\n")
    with pytest.raises(ConfigError, match=f'1 mistake .*\n.*did you mean {right}'):
        check_config(load_config(path))


def test_names_that_differ_in_their_numbers_are_two(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f"_base_ = '{TINY_CONFIG}'\nmodel2 = dict(a=1)\n")
    assert not check_top_level(load_config(path))


def test_keys_of_version_2_name_their_place(tmp_path, hints):
    path = tmp_path / 'mine.py'
    path.write_text(f"_base_ = '{TINY_CONFIG}'\nlr_config = dict(policy='step')\nfp16 = dict(loss_scale=512.)\n"
                    'optimizer = dict(lr=0.02)\noptim_wrapper = dict(accumulative_counts=1)\n')
    check_config(load_config(path))
    assert names_of(hints) == ['lr_config', 'fp16', 'optimizer']


def test_variables_that_stand_elsewhere_too_are_no_keys(hints):
    """An ``optimizer`` that is also in ``optim_wrapper``, as the base wrote it, is no finding; another one is."""
    cfg = load_config(TINY_CONFIG)
    cfg.optimizer = dict(cfg.optim_wrapper.optimizer)
    cfg.seed, cfg.randomness = 5, dict(seed=5, deterministic=False)
    cfg.data = [dict(type='A'), dict(type='B')]
    cfg.my_lists = [1, [dict(inner=[dict(type='A'), dict(type='B')])]]
    check_config(cfg)
    assert not hints
    cfg.optimizer.lr = 0.5
    check_config(cfg)
    assert names_of(hints) == ['optimizer']


VERSION_2 = (
    ('checkpoint_config', 'default_hooks.checkpoint'), ('cudnn_benchmark', 'env_cfg'), ('data', 'train_dataloader'),
    ('dist_params', 'env_cfg.dist_cfg'), ('evaluation', 'val_evaluator'), ('fp16', 'AmpOptimWrapper'),
    ('log_config', 'default_hooks.logger'), ('lr_config', 'param_scheduler'), ('optimizer', 'optim_wrapper.optimizer'),
    ('optimizer_config', 'optim_wrapper.clip_grad'), ('resume_from', 'resume = True'), ('runner', 'train_cfg'),
    ('seed', 'randomness.seed'), ('total_epochs', 'train_cfg.max_epochs'), ('workflow', 'val_cfg'))


def test_all_keys_of_version_2(hints):
    places = dict(VERSION_2)
    cfg = load_config(TINY_CONFIG)
    cfg.merge_from_dict({name: dict(name=name) for name in places})
    check_config(cfg)
    lines = dict(zip(names_of(hints), hints, strict=True))
    assert lines.keys() == places.keys()
    assert all('version 2' in lines[name] and place in lines[name] for name, place in places.items())


@pytest.fixture
def dump(tmp_path, monkeypatch):
    """A function that writes a config as a run does, but does not lay its lines out."""
    monkeypatch.setattr(config, 'FormatCode', lambda text, **style: (text, True))

    def write(cfg):
        cfg.dump(tmp_path / 'dumped.py')
        return tmp_path / 'dumped.py'

    return write


@pytest.mark.parametrize('name', LOADABLE)
def test_what_a_config_dumps_holds_the_same(name, dump):
    """So it passes like the config; only the text, which shows what uses a name, differs."""
    cfg = load_config(name)
    again = load_config(dump(cfg))
    assert again._cfg_dict == cfg._cfg_dict and not check_top_level(again)


@pytest.mark.parametrize('run', ('trained', 'trained_segmentor'))
def test_the_configs_in_the_folder_of_a_run_have_no_findings(run, request, hints):
    folder, _ = request.getfixturevalue(run)
    files = [*folder.glob('*.py'), *folder.glob('*/vis_data/config.py')]
    assert len(files) == 2
    for file in files:
        check_config(load_config(file))
    assert not hints


def test_variables_that_a_dump_holds_are_used_up(tmp_path, dump, hints):
    """As in mmseg's configs of Swin and BiSeNet: an optimizer that another one replaced, a list of heads."""
    base, path, based = tmp_path / 'base.py', tmp_path / 'mine.py', tmp_path / 'child.py'
    base.write_text(f"_base_ = '{TINY_CONFIG}'\nmodels = dict(with_cp=True)\nmodel = dict(backbone=models)\n"
                    "optimizer = dict(type='SGD', lr=0.01)\noptim_wrapper = dict(optimizer=optimizer)\n")
    path.write_text("_base_ = 'base.py'\nmodel = dict(backbone=dict(with_cp=False))\noptim_wrapper = dict("
                    "_delete_=True, type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4))\n")
    cfg = load_config(path)
    cfg.launcher, cfg.work_dir, cfg.resume, cfg.load_from = 'none', 'work_dirs/x', True, 'x.pth'
    check_config(cfg)
    dumped = dump(cfg)
    check_config(load_config(dumped))
    based.write_text(f"_base_ = '{dumped}'\nlauncher = 'pytorch'\n")
    check_config(load_config(based))
    assert not hints
    based.write_text(f"_base_ = '{dumped}'\nfp16 = dict(loss_scale=512.)\nmodle = dict(a=1)\n")
    with pytest.raises(ConfigError, match='1 mistake .*\n.*modle'):
        check_config(load_config(based))
    assert names_of(hints) == ['fp16']
