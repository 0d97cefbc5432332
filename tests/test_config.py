"""Configs, and what the tools' options do to them."""
import ast
import json
import shutil
import sys

import pytest
import torch
from conftest import MAIN_CONFIG, SMALL_CONFIG, TINY_CONFIG, run_tool

from xcit_dense import get_config, list_models
from xcit_dense.config import loading, options
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import classes_of_data, set_classes, take_classes
from xcit_dense.data.datasets import check_data
from xcit_dense.errors import ConfigError, DataError


@pytest.fixture
def main():
    return load_config(MAIN_CONFIG)


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


def test_missing_data_is_one_error_with_the_layout(main, tmp_path):
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/instances_train2017.json').touch()
    cfg = load_config(MAIN_CONFIG, data_root=tmp_path)
    with pytest.raises(DataError) as caught:
        check_data(cfg)
    text = str(caught.value)
    assert f'found    {tmp_path}/annotations/instances_train2017.json' in text
    for part in ('annotations/instances_val2017.json', 'train2017', 'val2017'):
        assert f'missing  {tmp_path}/{part}' in text
    assert '--data-root' in text


def test_classes_come_from_the_data(demo_data):
    cfg = load_config(SMALL_CONFIG, data_root=demo_data)
    take_classes(cfg)
    classes = ('disc', 'square', 'triangle', 'star', 'cross')
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 5
    assert cfg.val_dataloader.dataset.metainfo.classes == classes
    assert len(set(map(tuple, cfg.val_dataloader.dataset.metainfo.palette))) == 5


def test_classes_keep_the_order_of_the_file_as_mmdet_does(demo_data, tmp_path):
    (tmp_path / 'annotations').mkdir()
    content = json.loads((demo_data / 'annotations/instances_train2017.json').read_text())
    content['categories'].reverse()
    (tmp_path / 'annotations/instances_train2017.json').write_text(json.dumps(content))
    cfg = load_config(SMALL_CONFIG, data_root=tmp_path)
    assert classes_of_data(cfg.train_dataloader.dataset) == dict(
        classes=('cross', 'star', 'triangle', 'square', 'disc'), category_ids=(5, 4, 3, 2, 1))


@pytest.mark.parametrize('change', (lambda c: c.reverse(), lambda c: c.pop(), lambda c: c[0].update(id=9)))
def test_categories_in_another_order_are_refused(change, demo_data, tmp_path):
    """mmdet counts the categories of each file by themselves: another order scores the wrong classes."""
    shutil.copytree(demo_data / 'annotations', tmp_path / 'annotations')
    path = tmp_path / 'annotations/instances_val2017.json'
    content = json.loads(path.read_text())
    change(content['categories'])
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=f'{path} has other classes than the training data, or another order'):
        take_classes(load_config(SMALL_CONFIG, data_root=tmp_path))


def test_classes_of_a_checkpoint_are_compared_with_the_data(demo_data):
    cfg = load_config(SMALL_CONFIG, data_root=demo_data)
    checkpoint = dict(meta=dict(dataset_meta=dict(classes=('square', 'disc', 'triangle', 'star', 'cross'))))
    with pytest.raises(DataError, match=r'other classes than run\.pth'):
        take_classes(cfg, checkpoint, 'run.pth', loaders=['test_dataloader'])
    take_classes(cfg, checkpoint, 'run.pth', loaders=[])
    assert cfg.test_dataloader.dataset.metainfo.classes[0] == 'square'


def test_config_by_name_takes_its_classes_from_the_data(demo_data):
    assert get_config('maskrcnn_xcit_n12_p16_small', data_root=demo_data).model.roi_head.bbox_head.num_classes == 5


def test_empty_folders_are_named(tmp_path):
    for part in ('images', 'annotations'):
        for split in ('training', 'validation'):
            (tmp_path / part / split).mkdir(parents=True)
    with pytest.raises(DataError, match=f'empty    {tmp_path}/images/training'):
        check_data(load_config('semfpn_xcit_n12_p16_ade20k', data_root=tmp_path))


def test_file_that_is_no_coco_file(demo_data, tmp_path):
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/instances_train2017.json').write_text(json.dumps([1, 2]))
    with pytest.raises(DataError, match='instances_train2017.json is no COCO'):
        take_classes(load_config(SMALL_CONFIG, data_root=tmp_path))


def test_misspelt_config_is_told_the_near_ones():
    with pytest.raises(ConfigError, match='did you mean maskrcnn_xcit_s12_p8_coco'):
        load_config(MAIN_CONFIG.with_name('maskrcn_xcit_s12_p8_coco.py'))


def test_configs_have_names():
    assert 'maskrcnn_xcit_s12_p8_coco' in list_models() and 'semfpn_xcit_l24_p16_ade20k' in list_models()
    cfg = get_config('maskrcnn_xcit_s12_p8_coco', pretrained=False)
    assert cfg.model.backbone.arch == 'small_12_p8' and cfg.model.backbone.init_cfg is None
    for name in list_models():
        assert get_config(name).model.backbone.type == 'XCiT'
    with pytest.raises(ConfigError, match='list_models'):
        get_config('yolo')


def test_data_roots_are_compared_by_folders(tmp_path):
    path = tmp_path / 'other.py'
    path.write_text(f"_base_ = '{SMALL_CONFIG}'\nval_evaluator = dict(ann_file='data/coco2/v.json')\n")
    assert load_config(path, data_root='/elsewhere').val_evaluator.ann_file == 'data/coco2/v.json'


@pytest.mark.parametrize('text, line, problem', (
    ('x = dict(a=1\n', 2, r"SyntaxError: '\(' was never closed"),
    ('x = 1\ny = x / 0\n', 3, 'ZeroDivisionError: division by zero'),
    ("model = dict(bbox=1)\nx = model['box']\n", 3, "KeyError: 'box'"),
    ("_base_ = [\n    'absent.py']\n", 3, 'there is no .*absent.py, which it names as its _base_'),
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


def test_options_and_config_are_told_of_at_once(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text(f"_base_ = '{TINY_CONFIG}'\nmodel = dict(backbone=dict(with_pc=True))\n")
    with pytest.raises(ConfigError) as caught:
        load_config(path, check=True, cfg_options={'modle.x': 1, 'val_dataloader.batch_size': 0})
    title, *lines = str(caught.value).splitlines()
    assert title.startswith('3 things') and [line.split()[0] for line in lines] == [
        'modle.x', 'val_dataloader.batch_size', 'model.backbone.with_pc']
    with pytest.raises(ConfigError, match='2 things'):  # the tools that do not train
        load_config(path, cfg_options={'modle.x': 1, 'val_dataloader.batch_size': 0})


@pytest.mark.parametrize('item, words', (
    ('foo', "--cfg-options takes KEY=VALUE, such as train_cfg.val_interval=2, got 'foo'"),
    ('=3', "got '=3'"),
    ('train_cfg.x=[1,2', 'the brackets do not match; a list is written "train_cfg.x=[1,2]"'),
    ('custom_hooks=[dict(type="EMAHook")]', f"""  _base_ = '{TINY_CONFIG}'\n  custom_hooks = [dict(type="EMAHook")]"""),
    ("model.backbone.init_cfg={'type': 'x'}", "  model = dict(backbone=dict(init_cfg={'type': 'x'}))"),
))
def test_options_that_cannot_be_read(item, words, call_tool):
    code, message = call_tool('train.py', TINY_CONFIG, '--cfg-options', 'train_cfg.val_begin=2', item)
    assert code == 1 and message.startswith('error: --cfg-options') and message.endswith(words)


def test_options_with_braces_that_are_no_dicts(call_tool, monkeypatch):
    monkeypatch.setattr(loading, 'load_config', lambda config, cfg_options, **_: sys.exit(str(cfg_options)))
    _, message = call_tool('train.py', 'x', '--cfg-options', 'a.b={}.pth', 'c=iter_{}.pth', '--cfg-options',
                           'd=[1,(2,3)]', 'e=k=v')
    assert ast.literal_eval(message) == {'a.b': '{}.pth', 'c': 'iter_{}.pth', 'd': [1, (2, 3)], 'e': 'k=v'}


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_amp_without_a_gpu_is_refused(main):
    with pytest.raises(ConfigError, match='--amp needs a GPU'):
        options.set_amp(main)


def test_auto_scale_lr_needs_a_base(main):
    options.set_auto_scale_lr(main)
    assert main.auto_scale_lr.enable
    main._cfg_dict.pop('auto_scale_lr')
    with pytest.raises(ConfigError, match='base_batch_size'):
        options.set_auto_scale_lr(main)


def test_readme_table_and_metafiles_are_up_to_date():
    done = run_tool('model_table.py', '--check', check=False)
    assert done.returncode == 0, done.stdout
