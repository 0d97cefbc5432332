"""Configs by name and by file, errors in them, their tasks, and what runs them: our runner, loops and hooks."""
import re
from pathlib import Path

import pytest
from mmdet.models import MaskRCNN
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.registry import MODELS
from mmengine.runner import EpochBasedTrainLoop, Runner

from helpers.paths import MAIN_CONFIG, ROOT, SMALL_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.refusals import stock
from xcit_dense import XCiT, get_config
from xcit_dense._utils.files import folder_of
from xcit_dense.config import options
from xcit_dense.config.loading import find_config, list_models, load_config, read_config
from xcit_dense.config.runner import is_ours, use_our_runner
from xcit_dense.config.tasks import task_of, tasks_with
from xcit_dense.data.classes import set_classes
from xcit_dense.errors import ConfigError
from xcit_dense.train import DenseCheckpointHook, DenseRunner

OURS = dict(type='DenseCheckpointHook', interval=1)
Loop, Saving = type('Loop', (EpochBasedTrainLoop, ), {}), type('Saving', (DenseCheckpointHook, ), {})  # a user's


def test_configs_are_found_by_path_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name = MAIN_CONFIG.stem
    assert folder_of('configs') == ROOT / 'configs' and name in list_models() == sorted(list_models())
    assert f'Six of {len(list_models())} configs' in (ROOT / 'README.md').read_text()
    for text in (name, f'{name}.py', f'configs/{name}.py', f'xcit_dense::{name}', MAIN_CONFIG, str(MAIN_CONFIG)):
        assert find_config(text) == MAIN_CONFIG
    for file in (f'{name}.py', 'my_own_model.py', 'model.onnx'):
        (tmp_path / file).touch()
    assert find_config(f'{name}.py') == Path(f'{name}.py')  # a file goes before a name
    for text, words in ((f'elsewhere/{name}.py', f'did you mean .*{name}'), (name[:-1], f'did you mean .*{name}'),
                        ('my_own_modle.py', 'did you mean my_own_model'), ('zzz', 'list_models'),
                        ('mmdet::atss/atss_r50_fpn_1x_coco.py', 'adapt mmdet::atss/atss_r50_fpn_1x_coco.py --out'),
                        ('model.onnx', r'model\.onnx is a model file.*CONFIG comes first')):
        with pytest.raises(ConfigError, match=words):
            find_config(text)
    cfg = get_config(name)
    assert cfg.model.backbone.arch == 'small_12_p8' and cfg.model.backbone.init_cfg.type == 'Pretrained'
    assert 'Pretrained' not in repr(get_config(name, pretrained=False).model)


def test_a_work_dir_is_no_config(tmp_path):
    (tmp_path / 'mine.py').touch()
    with pytest.raises(ConfigError, match=f'is a folder.* train {tmp_path}/mine.py --work-dir {tmp_path} --resume$'):
        find_config(tmp_path)


def test_own_configs_inherit_by_package(tmp_path):
    """With and without .py, from a part in a subfolder, and beside a config of a framework."""
    own = tmp_path / 'mine.py'
    wanted = load_config(SMALL_CONFIG)
    for base in (f"'xcit_dense::{SMALL_CONFIG.stem}.py'", f"['xcit_dense::{SMALL_CONFIG.stem}']"):
        own.write_text(f'_base_ = {base}\ntrain_dataloader = dict(batch_size=3)\n')
        found = load_config(own)
        assert found.train_dataloader.batch_size == 3 != wanted.train_dataloader.batch_size
        assert found.model == wanted.model and '_scope_' not in found.model
    own.write_text("_base_ = ['mmdet::_base_/default_runtime.py', 'xcit_dense::_base_/schedules/adamw_3x.py']\n")
    assert load_config(own).train_cfg.max_epochs == 36
    own.write_text("_base_ = 'xcit_dense::maskrcnn_xcit_n12_p16_smal'\n")
    with pytest.raises(ConfigError, match='did you mean maskrcnn_xcit_n12_p16_small'):
        load_config(own)


def test_data_root_and_classes_reach_wrapped_data_sets(own, tmp_path):
    cfg = load_config(own(
        "train_dataloader = dict(dataset=dict(_delete_=True, type='RepeatDataset', times=2, dataset=dict("
        "type='ConcatDataset', datasets=[dict(type='CocoDataset', data_root='data/coco/', ann_file='a.json', "
        "data_prefix=dict(img='i/'))])))", SMALL_CONFIG), data_root=str(tmp_path))
    set_classes(cfg, ['a', 'b'])
    dataset, = cfg.train_dataloader.dataset.dataset.datasets
    assert dataset.data_root == str(tmp_path) and dataset.metainfo.classes == ('a', 'b')


@pytest.mark.parametrize('text, line, problem', (
    ('x = dict(a=1\n', 2, r"SyntaxError: '\(' was never closed"),
    ("model = dict(bbox=1)\nx = model['box']\n", 3, "KeyError: 'box'"),
    ("_base_ = [\n    'absent.py']\n", None, 'FileNotFoundError: .*absent.py'),
    ("_base_ = 'mmdet::atss/atss_r50_fpn_2x_coco.py'\n", None, 'in mmdet; did you mean mmdet::atss/atss_r50_fpn_1x'),
    ('model = 3\ntrain_dataloader = dict(batch_size=dict(a=1))\n', None, 'TypeError: batch_size='),
    ('custom_imports = dict(imports=["xcit_dense",\n    "absent"])\n', None, "cannot import absent: .*No module named"),
    ('custom_imports = dict(imports=["unfinished"])\n', None, r"cannot import unfinished: SyntaxError: .*\("
     r"unfinished.py, line 1\)$"),
    ('custom_imports = dict(imports=["broken"], allow_failed_imports=True)\n', None,
     'cannot import broken: .*broken.py, line 2: NameError')))
def test_faults_in_a_config_file_are_named_with_their_place(text, line, problem, tmp_path, monkeypatch):
    """Also if the file is the base of another."""
    path, child = tmp_path / 'mine.py', tmp_path / 'child.py'
    base = '' if '_base_' in text else f"_base_ = '{TINY_CONFIG}'"
    path.write_text(f'{base}\n{text}')
    child.write_text("_base_ = 'mine.py'\n")
    (tmp_path / 'broken.py').write_text('x = 1\ngone\n')
    (tmp_path / 'unfinished.py').write_text('x = (1\n')
    monkeypatch.syspath_prepend(tmp_path)
    for config in (path, child):
        with pytest.raises(ConfigError, match=problem) as caught:
            load_config(config)
        place = config if 'custom_imports' in text else path
        assert str(caught.value).startswith(f'{place}{f", line {line}" if line else ""}: ')


def test_imports_of_ones_own_take_nothing_away(own):
    """They replace those of the base, which import this package; the tools import it anyway."""
    cfg = load_config(own("custom_imports = dict(imports=['json'])"), check=True)
    assert cfg.custom_imports.imports == ['json'] and MODELS.get(cfg.model.backbone.type) is XCiT


@pytest.mark.parametrize('config, names', (
    (TINY_CONFIG, 'custom_hooks auto_scale_lr param_scheduler visualizer log_processor model_wrapper_cfg '
     'custom_imports default_hooks test_dataloader test_evaluator test_cfg load_from data_root randomness '
     'optim_wrapper.clip_grad optim_wrapper.paramwise_cfg'),
    (TINY_SEG_CONFIG, 'default_hooks.logger default_hooks.checkpoint train_dataloader.collate_fn '
     'train_dataloader.dataset.metainfo train_dataloader.dataset.filter_cfg train_dataloader.sampler '
     'val_dataloader val_evaluator val_cfg model.backbone.init_cfg model.data_preprocessor')))
def test_none_is_a_value_wherever_mmengine_takes_it(config, names, tmp_path):
    cfg = load_config(config)
    cfg.merge_from_dict(dict.fromkeys(names.split()))
    cfg.dump(tmp_path / 'mine.py')
    cfg = load_config(tmp_path / 'mine.py', data_root=tmp_path, pretrained=False, check=True)
    options.add_hook(cfg, 'FuseHook')


def test_the_task_of_a_config_is_that_of_its_model():
    for config, name in ((TINY_CONFIG, 'detection'), (TINY_SEG_CONFIG, 'segmentation'),
                         ('xcit_s12_p16_custom', 'classification'), ('xcit_n12_p16_dino_small', 'features')):
        assert task_of(load_config(config)).name == name
    assert task_of(Config(dict(model=dict(type=MaskRCNN)))).name == 'detection'  # as in a pure-Python config
    task = task_of(Config(dict(model=dict(type='Mine'), default_scope='mmpose')))
    assert (task.name, task.framework) == ('mmpose', 'mmpose') and not any(
        map(task.part, ('recorder', 'predictor', 'loaded', 'fit', 'augmented')))
    assert task_of(Config({})).framework is None and tasks_with('recorder').count(' or ') == 2


def used(capfd, trains=True, **changes):
    """A config with what a run of it uses, and what was said."""
    cfg = Config({'train_cfg': dict(by_epoch=True, max_epochs=2), **changes})
    capfd.readouterr()
    use_our_runner(cfg, trains)
    return cfg, ''.join(capfd.readouterr())


@pytest.mark.parametrize(('framework', 'name', 'loop'), (
    ('mmdet', 'retinanet/retinanet_r18_fpn_1x_coco.py', 'DenseEpochLoop'),
    ('mmseg', 'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', 'DenseIterLoop')))
def test_a_config_of_a_framework(framework, name, loop, capfd):
    """Its options stay; a test changes no part of a training."""
    if not (path := stock(framework, name)).is_file():
        pytest.skip(f'this {framework} brings no configs')
    before, tested, cfg = read_config(path), load_config(path, tested=True), load_config(path, check=True)
    saving = before.default_hooks.checkpoint
    assert (cfg.runner_type, cfg.train_cfg.type) == ('DenseRunner', loop)
    assert cfg.default_hooks.checkpoint == dict(saving, type='DenseCheckpointHook')
    assert cfg.default_hooks.startup == dict(type='StartupHook')
    assert cfg.visualizer.vis_backends == [dict(type='DenseVisBackend')]
    assert tested._cfg_dict == dict(before._cfg_dict, runner_type='DenseRunner')
    assert ' stays' not in ''.join(capfd.readouterr())


def test_what_a_config_leaves_out_and_what_it_gives_as_classes(capfd):
    cfg, said = used(capfd, default_scope='mmdet')
    assert "runner_type = 'Runner' in the config keeps mmengine's" in said
    assert cfg.train_cfg == dict(type='DenseEpochLoop', max_epochs=2)
    assert cfg.default_hooks == dict(checkpoint=OURS, startup=dict(type='StartupHook'), ending=dict(type='EndingHook'))
    cfg, said = used(capfd, train_cfg=dict(type=EpochBasedTrainLoop, max_epochs=2), default_hooks=dict(
        checkpoint=dict(type=CheckpointHook, interval=1), startup=None, ending=None))
    assert ' stays' not in said and cfg.train_cfg.type == 'DenseEpochLoop'
    assert cfg.default_hooks == dict(checkpoint=OURS, startup=None, ending=None)
    cfg, said = used(capfd, train_cfg=dict(by_epoch=False, max_iters=2), custom_hooks=[dict(type='StartupHook')],
                     default_hooks=dict(checkpoint=None, ending=None))
    assert ' stays' not in said and cfg.train_cfg == dict(type='DenseIterLoop', max_iters=2)
    assert cfg.default_hooks == dict(checkpoint=None, ending=None)


def test_our_own_configs_and_subclasses_of_ours_stay_as_they_are(capfd):
    kinds = {'DenseRunner': True, 'Runner': False, type('Own', (DenseRunner, ), {}): True, Runner: False}
    assert {kind: is_ours(Config(dict(runner_type=kind))) for kind in kinds} == kinds
    assert load_config(TINY_CONFIG, check=True, pretrained=False)._cfg_dict == load_config(
        TINY_CONFIG, pretrained=False)._cfg_dict
    cfg, said = used(capfd, default_hooks=dict(checkpoint=dict(type=Saving)))
    assert ' stays' not in said and cfg.default_hooks.checkpoint.type is Saving
    own = type('CheckpointHook', (CheckpointHook, ), {})  # a user's of that name
    cfg, said = used(capfd, default_hooks=dict(checkpoint=dict(type=own)))
    assert 'checkpoint = CheckpointHook stays' in said and cfg.default_hooks.checkpoint.type is own
    assert not used(capfd, trains=False, runner_type='Runner')[1]  # a test loses none of it


@pytest.mark.parametrize(('changes', 'said'), (
    (dict(train_cfg=dict(type=Loop, max_epochs=2)), 'train_cfg.type = Loop stays.*SIGTERM end the run without saving.*'
                                                    'not continue exactly'),
    (dict(default_hooks=dict(checkpoint=dict(
        type='CheckpointHook', out_dir='a', published_keys=1, filename_tmpl='b/c'))),
     r"default_hooks.checkpoint = CheckpointHook \(out_dir='a', published_keys=1, filename_tmpl='b/c'\) stays.*saving"),
    (dict(default_hooks=dict(checkpoint=dict(type='CheckpointHook', backend_args=dict(a=1)))),
     r"runner_type = Runner \(backend_args={'a': 1}\) stays"),
    (dict(runner_type=Runner), 'runner_type = Runner stays.*without saving.*not at all'),
    (dict(default_hooks=dict(checkpoint=dict(type='CheckpointHook', out_dir='s3://bucket'))),
     r"runner_type = Runner \(out_dir='s3://bucket'\) stays")))
def test_what_stays_is_named_with_what_is_lost(changes, said, capfd):
    """In one line; nothing else of a config with another runner changes."""
    cfg, told = used(capfd, **changes)
    assert re.search(said, told) and told.count(' stays') == 1
    if 'runner_type' in said:
        assert cfg._cfg_dict == {'train_cfg': dict(by_epoch=True, max_epochs=2), **changes}
    else:
        assert cfg.runner_type == 'DenseRunner'
        kept = cfg.train_cfg if 'train_cfg' in changes else cfg.default_hooks.checkpoint
        assert kept == next(iter(changes.values())).get('checkpoint', kept)
