"""The block at the start of a training: each line against what the run really has."""
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import mmengine
import pytest
import torch
from mmengine.hooks import Hook

from helpers.models import official_state, save
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import add_hook
from xcit_dense.data.classes import take_classes
from xcit_dense.train import build_runner, startup
from xcit_dense.train.startup import StartupHook, describe_run


class _Started(Exception):
    pass


class _StopHook(Hook):
    """Ends a training before its first iteration, after the hooks before it."""
    priority = 'LOWEST'

    def before_train(self, runner):
        raise _Started


def started(path, demo_data, work_dir, **options):
    """Begin a training and return its runner and the lines of its block by their names."""
    cfg = load_config(path, data_root=str(demo_data),
                      cfg_options={key.replace('__', '.'): value for key, value in options.items()})
    cfg.work_dir = str(work_dir)
    take_classes(cfg)
    runner = build_runner(cfg)
    runner.register_hook(_StopHook())
    with pytest.raises(_Started):
        runner.train()
    return runner, dict(re.split('  +', line, maxsplit=1) for line in describe_run(runner).splitlines())


def tells(text, *words):
    """Whether a line has all of some words, in their order."""
    assert re.search('.*'.join(map(re.escape, words)), text), text
    return True


@pytest.mark.parametrize('count, words', ((1, '1 process'), (2, '2 processes')))
def test_processes_are_counted(count, words):
    assert startup._device(SimpleNamespace(world_size=count)).endswith(f'; {words}')


def test_detector(demo_data, tmp_path):
    runner, block = started(TINY_CONFIG, demo_data, tmp_path, randomness__seed=5)
    assert f'torch {torch.__version__}' in block['versions'] and f'mmengine {mmengine.__version__}' in block['versions']
    assert 'xcit_dense ' in block['versions'] and 'mmdet 3' in block['versions']
    assert block['device'].endswith('; 1 process') and block['precision'] == 'float32' and block['compile'] == 'nothing'
    assert block['model'] == 'MaskRCNN with XCiT' and block['weights'] == 'all random'
    assert tells(block['batch'], '2 images', '2 per process x 1 process x 1 accumulated')
    assert tells(block['learning rate'], '0.001;', 'not scaled', '8 images', '--auto-scale-lr')
    assert tells(block['schedule'], '2 epochs', ' 3 iterations', '6 in total', 'LinearLR, Cosine', 'every epoch')
    for part, count in (('training data', 6), ('validation data', 3)):
        assert tells(block[part], f'{count} images', '5 classes', str(demo_data))
    assert block['seed'] == '5' and block['work dir'] == str(tmp_path)
    assert tells(block['checkpoints'], 'every epoch ', str(tmp_path), 'newest 2')
    assert '--resume' in block['resume'] and str(tmp_path) in block['resume']


def test_segmentor(demo_data, tmp_path):
    _, block = started(TINY_SEG_CONFIG, demo_data, tmp_path, val_evaluator=None, val_dataloader=None, val_cfg=None,
                       default_hooks__checkpoint__interval=-1)
    assert 'mmseg 1' in block['versions'] and block['validation data'] == 'none' and block['checkpoints'] == 'none'
    assert block['schedule'].startswith('4 iterations, 1.33 times the data; LinearLR')
    assert block['training data'].startswith('6 images of ')


def test_parameters_by_decay_and_frozen_ones(demo_data, tmp_path):
    runner, block = started(TINY_CONFIG, demo_data, tmp_path, model__backbone__frozen_stages=2)
    parameters = dict(runner.model.named_parameters())
    trained = {name: p.numel() for name, p in parameters.items() if p.requires_grad}
    plain = sum(count for name, count in trained.items() if 'norm' in name)
    total, count = sum(p.numel() for p in parameters.values()), sum(trained.values())
    assert 0 < plain < count < total
    assert tells(block['parameters'], f'{total:,}:', f' {count:,} trained', f' {count - plain:,} of them with',
                 f' {plain:,} without', f' {total - count:,} frozen')


def test_batch_and_learning_rate(demo_data, tmp_path):
    _, block = started(
        TINY_CONFIG, demo_data, tmp_path, optim_wrapper__accumulative_counts=3, auto_scale_lr__enable=True,
        optim_wrapper__paramwise_cfg=dict(custom_keys=dict(backbone=dict(lr_mult=0.1))))
    assert tells(block['batch'], '6 images', '2 per process x 1 process x 3 accumulated')
    assert tells(block['learning rate'], '2.5e-05 to 0.00025 ', 'scaled by 0.25', '2 images', 'for 8')
    assert 'not scaled' not in block['learning rate']


@pytest.mark.parametrize('options, words', (
    (dict(interval=3, max_keep_ckpts=5), ('every 3 epochs', 'newest 5')),
    (dict(interval=1, max_keep_ckpts=-1, save_best=['coco/bbox_mAP', 'coco/segm_mAP']),
     ('every epoch ', 'best by coco/bbox_mAP, coco/segm_mAP')),
    (dict(interval=2, max_keep_ckpts=1, by_epoch=False), ('every 2 iterations', 'newest 1'))))
def test_checkpoints(options, words, demo_data, tmp_path):
    _, block = started(TINY_CONFIG, demo_data, tmp_path,
                       **{f'default_hooks__checkpoint__{name}': value for name, value in options.items()})
    assert tells(block['checkpoints'], *words)
    assert ('newest' in block['checkpoints']) == (options['max_keep_ckpts'] > 0)
    assert ('best' in block['checkpoints']) == ('save_best' in options)


def test_weights_with_their_number(demo_data, tmp_path):
    path = save(tmp_path / 'start.pth', official_state(16))
    runner, block = started(TINY_CONFIG, demo_data, tmp_path / 'run',
                            model__backbone__init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    wanted = runner.model.backbone.state_dict()
    found = sum(not name.startswith('fpn') for name in wanted)
    assert block['weights'].startswith(f'backbone: {found} of {len(wanted)} tensors from {path}')
    assert block['weights'].endswith('the rest random')


def test_weights_of_a_resumed_run(trained, demo_data, tmp_path):
    work_dir = shutil.copytree(trained[0], tmp_path / 'run')
    runner, block = started(TINY_CONFIG, demo_data, work_dir, resume=True, train_cfg__max_epochs=3)
    count = len(runner.model.state_dict())
    assert block['weights'].startswith(f'{count} of {count} tensors from {work_dir}')
    assert block['weights'].endswith('resumed at epoch 2, iteration 6')


def test_images_are_counted_after_filtering(demo_data, tmp_path):
    content = json.loads(Path(demo_data, 'annotations/instances_train2017.json').read_text())
    first = content['images'][0]['id']
    content['annotations'] = [a for a in content['annotations'] if a['image_id'] != first]
    path = tmp_path / 'fewer.json'
    path.write_text(json.dumps(content))
    _, block = started(TINY_CONFIG, demo_data, tmp_path / 'run', train_dataloader__dataset__ann_file=str(path))
    assert block['training data'].startswith('5 images of 5 classes, after filtering')


def test_hook_logs_it_once_and_on_the_first_process_only(demo_data, tmp_path, monkeypatch):
    cfg = load_config(TINY_CONFIG, data_root=str(demo_data))
    cfg.work_dir = str(tmp_path)
    take_classes(cfg)
    cfg.custom_hooks = []
    add_hook(cfg, 'CompileHook')
    runner = build_runner(cfg)
    runner.register_hook(_StopHook())
    with pytest.raises(_Started):
        runner.train()
    log, = tmp_path.glob('*/*.log')
    text = log.read_text()
    assert text.count('\nversions ') == 1 and re.search(r'\ncompile +the backbone\n', text)
    monkeypatch.setattr(startup, 'is_first_process', lambda: False)
    StartupHook().before_train(None)  # looks at nothing


def test_a_look_that_fails_stops_no_training(demo_data, tmp_path, monkeypatch):
    """Data of the user's own kind may lead it to anything."""
    monkeypatch.setattr(startup, 'look', lambda *args: 1 / 0)
    started(TINY_CONFIG, demo_data, tmp_path)
    log, = tmp_path.glob('*/*.log')
    text = log.read_text()
    assert 'division by zero' in text and '\nversions ' in text and '\nobjects ' not in text


def test_a_scope_and_a_batch_sampler_of_the_users_own(demo_data, tmp_path):
    runner, _ = started(TINY_CONFIG, demo_data, tmp_path)
    runner.default_scope = SimpleNamespace(scope_name='theirs')
    del runner.train_dataloader.batch_sampler.batch_size
    lines = dict(re.split('  +', line, maxsplit=1) for line in describe_run(runner).splitlines())
    assert 'theirs' not in lines['versions'] and 'batch sampler' in lines['batch']


def test_a_loop_of_the_users_own_may_have_no_epochs_and_no_validation():

    class OwnLoop:
        pass

    assert startup._schedule(SimpleNamespace(train_loop=OwnLoop(), param_schedulers=None, val_loop=object())) == (
        'length set by OwnLoop; a constant learning rate')
