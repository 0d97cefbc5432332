"""Reading configs from files, and errors in them."""
import pytest
from mmengine.registry import MODELS

from helpers.paths import MAIN_CONFIG, SMALL_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense import XCiT
from xcit_dense.config import options
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import set_classes
from xcit_dense.errors import ConfigError


def test_data_root_reaches_all_loaders_and_evaluators(tmp_path):
    cfg = load_config(MAIN_CONFIG, data_root=tmp_path)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert loader.dataset.data_root == str(tmp_path)
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        assert evaluator.ann_file == str(tmp_path / 'annotations/instances_val2017.json')
    assert 'data/coco' not in cfg.pretty_text


def test_data_root_reaches_wrapped_data_sets_and_lists_of_evaluators(tmp_path):
    path = tmp_path / 'wrapped.py'
    path.write_text(f"_base_ = '{SMALL_CONFIG}'\n"
                    "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, dataset=dict("
                    "type='ConcatDataset', datasets=[dict(type='CocoDataset', data_root='data/coco/',"
                    "ann_file='a.json', data_prefix=dict(img='i/'))])))\n"
                    "val_evaluator = [dict(type='CocoMetric', ann_file='data/coco/annotations/v.json')]\n")
    cfg = load_config(path, data_root='/elsewhere')
    assert cfg.train_dataloader.dataset.dataset.datasets[0].data_root == '/elsewhere'
    assert cfg.val_evaluator[0].ann_file == '/elsewhere/annotations/v.json'
    set_classes(cfg, ['a', 'b'])
    assert cfg.train_dataloader.dataset.dataset.datasets[0].metainfo.classes == ('a', 'b')


def test_no_pretrained_takes_every_start_weight_out():
    cfg = load_config(MAIN_CONFIG, pretrained=False)
    assert cfg.model.backbone.init_cfg is None
    assert 'Pretrained' not in cfg.model.__repr__()


def test_data_roots_are_compared_by_folders(tmp_path):
    path = tmp_path / 'other.py'
    path.write_text(f"_base_ = '{SMALL_CONFIG}'\nval_evaluator = dict(ann_file='data/coco2/v.json')\n")
    assert load_config(path, data_root='/elsewhere').val_evaluator.ann_file == 'data/coco2/v.json'


@pytest.mark.parametrize('text, line, problem', (
    ('x = dict(a=1\n', 2, r"SyntaxError: '\(' was never closed"),
    ('x = 1\ny = x / 0\n', 3, 'ZeroDivisionError: division by zero'),
    ("model = dict(bbox=1)\nx = model['box']\n", 3, "KeyError: 'box'"),
    ("_base_ = [\n    'absent.py']\n", 3, 'its _base_ .*absent.py does not exist'),
    ('model = 3\ntrain_dataloader = dict(batch_size=dict(a=1))\n', None, 'TypeError: batch_size='),
    ('custom_imports = dict(imports=["xcit_dense",\n    "absent"])\n', 3, "cannot import absent: .*No module named"),
    ('custom_imports = dict(imports=["unfinished"])\n', 2, r"cannot import unfinished: SyntaxError: .*\(unfinished.py, "
     r'line 1\)$'),
    ('custom_imports = dict(imports=["broken"])\n', 2, 'cannot import broken: .*broken.py, line 2: NameError: .*gone'),
))
@pytest.mark.parametrize('as_base', (False, True))
def test_faults_in_a_config_file_are_named_with_their_place(text, line, problem, as_base, tmp_path, monkeypatch):
    path = tmp_path / 'mine.py'
    base = '' if '_base_' in text else f"_base_ = '{TINY_CONFIG}'"
    path.write_text(f'{base}\n{text}')
    (tmp_path / 'child.py').write_text("_base_ = 'mine.py'\n")
    (tmp_path / 'broken.py').write_text('x = 1\ngone\n')
    (tmp_path / 'unfinished.py').write_text('x = (1\n')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=problem) as caught:
        load_config(tmp_path / 'child.py' if as_base else path)
    assert str(caught.value).startswith(f'{path}{f", line {line}" if line else ""}: ')


def test_imports_of_ones_own_take_nothing_away(tmp_path):
    """They replace those of the base, which import this package; the tools import it anyway."""
    path = tmp_path / 'mine.py'
    path.write_text(f"_base_ = '{TINY_CONFIG}'\ncustom_imports = dict(imports=['json'])\n")
    cfg = load_config(path, check=True)
    assert cfg.custom_imports.imports == ['json'] and MODELS.get(cfg.model.backbone.type) is XCiT


#: What mmengine takes a None for.
NONE = (
    ('custom_hooks', 'auto_scale_lr', 'param_scheduler', 'visualizer', 'log_processor', 'model_wrapper_cfg',
     'custom_imports', 'default_hooks', 'test_dataloader', 'test_evaluator', 'test_cfg', 'load_from', 'data_root',
     'randomness', 'optim_wrapper.clip_grad', 'optim_wrapper.paramwise_cfg'),
    ('default_hooks.logger', 'default_hooks.checkpoint', 'train_dataloader.collate_fn',
     'train_dataloader.dataset.metainfo', 'train_dataloader.dataset.filter_cfg', 'train_dataloader.sampler',
     'val_dataloader', 'val_evaluator', 'val_cfg', 'model.backbone.init_cfg', 'model.data_preprocessor'))


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
@pytest.mark.parametrize('names', NONE)
def test_none_is_a_value_wherever_mmengine_takes_it(config, names, tmp_path):
    cfg = load_config(config)
    cfg.merge_from_dict(dict.fromkeys(names))
    cfg.dump(tmp_path / 'mine.py')
    cfg = load_config(tmp_path / 'mine.py', data_root=tmp_path, pretrained=False, check=True)
    options.add_hook(cfg, 'FuseHook')


def test_options_and_config_are_told_of_at_once(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f"_base_ = '{TINY_CONFIG}'\nmodel = dict(backbone=dict(with_pc=True))\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, check=True, cfg_options={'modle.x': 1, 'val_dataloader.batch_size': 0})
    title, *lines = str(caught.value).splitlines()
    assert title.startswith('3 mistakes') and [line.split()[0] for line in lines] == [
        'modle.x', 'val_dataloader.batch_size', 'model.backbone.with_pc']
    with pytest.raises(ConfigError, match='2 mistakes'):  # the tools that do not train
        load_config(path, cfg_options={'modle.x': 1, 'val_dataloader.batch_size': 0})
