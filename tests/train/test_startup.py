"""The block at the start of a training: each line against what the run really has."""
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import mmengine
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset

from helpers.models import official_state, save
from helpers.paths import SMALL_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import At, die
from xcit_dense._utils import processes
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import add_hook
from xcit_dense.data.check.check import check_before_training
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import DataError
from xcit_dense.train import build_runner, startup
from xcit_dense.train.startup import StartupHook, describe_run


@pytest.fixture
def started(demo_data, tmp_path):
    """A function that begins a training; returns its runner, the lines of its block by their names, and its log."""
    def start(path=TINY_SEG_CONFIG, work_dir=tmp_path / 'run', hook=None, **options):
        cfg = load_config(path, data_root=str(demo_data),
                          cfg_options={key.replace('__', '.'): value for key, value in options.items()})
        cfg.work_dir = str(work_dir)
        if hook:
            add_hook(cfg, hook)
        reports = check_before_training(cfg)
        take_classes(cfg)
        runner = build_runner(cfg)
        runner.data_report = reports['train_dataloader']
        runner.register_hook(At(7 if 'resume' in options else 1, die, where='before_train'), 'LOWEST')
        with pytest.raises(RuntimeError, match='killed by the test'):
            runner.train()
        log, = Path(runner.log_dir).glob('*.log')
        return runner, lines_of(runner), log.read_text()
    return start


def lines_of(runner):
    return dict(re.split('  +', line, maxsplit=1) for line in describe_run(runner).splitlines())


def test_detector(started, demo_data):
    runner, block, _ = started(TINY_CONFIG, randomness__seed=5)
    assert f'torch {torch.__version__}' in block['versions'] and f'mmengine {mmengine.__version__}' in block['versions']
    assert 'xcit_dense ' in block['versions'] and 'mmdet 3' in block['versions']
    assert block['device'].endswith('; 1 process') and block['precision'] == 'float32' and block['compile'] == 'nothing'
    assert block['model'] == 'MaskRCNN with XCiT' and block['weights'] == 'all random'
    for part, words in {'batch': '2 images.*2 per process x 1 process x 1 accumulated',
                        'learning rate': r'^0\.001; not scaled.*8 images.*--auto-scale-lr',
                        'schedule': '2 epochs of 3 iterations, 6 in total; LinearLR, Cosine.*; validation every epoch',
                        'training data': f'6 images.*5 classes.*{demo_data}',
                        'validation data': f'3 images.*5 classes.*{demo_data}'}.items():
        assert re.search(words, block[part]), block[part]
    assert block['seed'] == '5' and block['work dir'] == runner.work_dir
    assert '--resume' in block['resume'] and runner.work_dir in block['resume']


def test_parameters_batch_and_learning_rate(started):
    """Some parameters are frozen, some have no decay, some other rates; batches are accumulated, rates scaled. In a run
    without validation and checkpoints."""
    runner, block, _ = started(
        val_evaluator=None, val_dataloader=None, val_cfg=None, default_hooks__checkpoint__interval=-1,
        model__backbone__frozen_stages=2, optim_wrapper__accumulative_counts=3, auto_scale_lr__enable=True,
        optim_wrapper__paramwise_cfg=dict(custom_keys=dict(neck=dict(lr_mult=0.1), norm=dict(decay_mult=0.))))
    parameters = dict(runner.model.named_parameters())
    trained = {name: p.numel() for name, p in parameters.items() if p.requires_grad}
    plain = sum(count for name, count in trained.items() if 'norm' in name)
    total, count = sum(p.numel() for p in parameters.values()), sum(trained.values())
    assert 0 < plain < count < total
    assert block['parameters'] == (f'{total:,}: {count:,} trained, {count - plain:,} of them with weight decay and '
                                   f'{plain:,} without; {total - count:,} frozen')
    assert 'mmseg 1' in block['versions'] and block['validation data'] == 'none'
    assert re.match('4 iterations, 1.33 times the data; LinearLR.*; no validation', block['schedule'])
    assert block['training data'].startswith('6 images of ')
    assert '6 images per step (2 per process x 1 process x 3 accumulated)' in block['batch']
    assert re.search('0.00015 to 0.0015 .*; scaled by 0.75: 6 images .* for 8', block['learning rate'])
    runner.auto_scale_lr = dict(enable=False, base_batch_size=6)
    assert 'scaled' not in lines_of(runner)['learning rate']


def test_weights_with_their_number(started, tmp_path):
    path = save(tmp_path / 'start.pth', official_state(16))
    runner, block, _ = started(model__backbone__init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    wanted = runner.model.backbone.state_dict()
    found = sum(not name.startswith('fpn') for name in wanted)
    assert block['weights'].startswith(f'backbone: {found} of {len(wanted)} tensors from {path}')
    assert block['weights'].endswith('the rest random')


def test_few_images_from_random_weights_name_the_published_ones(started, monkeypatch):
    runner, block, _ = started(SMALL_CONFIG)
    assert block['weights'] == ('all random; with so few images, ImageNet weights of this backbone usually help: '
                                '--init-from xcit://nano_12_p16_384_dist (a download of about 12 MiB)')
    state = torch.get_rng_state()
    assert 'MiB' in lines_of(runner)['weights'] and torch.equal(state, torch.get_rng_state())
    monkeypatch.setattr(startup, '_FEW', len(runner.train_dataloader.dataset))
    assert lines_of(runner)['weights'] == 'all random'


def test_weights_of_a_resumed_run(trained, started, tmp_path):
    work_dir = shutil.copytree(trained[0], tmp_path / 'run')
    shutil.rmtree(next(path for path in work_dir.iterdir() if path.is_dir()))  # its log
    runner, block, _ = started(TINY_CONFIG, work_dir, resume=True, train_cfg__max_epochs=3)
    count = len(runner.model.state_dict())
    assert block['weights'].startswith(f'{count} of {count} tensors from {work_dir}')
    assert block['weights'].endswith('resumed at epoch 2, iteration 6')


def test_images_and_objects_that_are_used_are_counted_after_filtering(started, demo_data, tmp_path):
    content, path = json.loads((demo_data / 'annotations/instances_train2017.json').read_text()), tmp_path / 'a.json'
    first, total = content['images'][0]['id'], len(content['annotations'])
    content['annotations'] = [dict(a, iscrowd=0) for a in content['annotations'] if a['image_id'] != first]
    content['annotations'][0]['iscrowd'], used = 1, len(content['annotations'])
    path.write_text(json.dumps(content))
    _, block, log = started(TINY_CONFIG, train_dataloader__dataset__ann_file=str(path))
    assert total > used and block['training data'] == (
        f'5 of 6 images and {used - 1} of {used} objects of 5 classes, in {demo_data}; not used: '
        '1 image without objects; 1 object marked as crowds (iscrowd)')
    repeated = type('Repeated', (Dataset, ), dict(dataset=Crowds(), __len__=lambda self: 6))()  # as mmengine's
    assert startup._data(SimpleNamespace(dataset=repeated)) == (
        '3 images and 0 objects (6 images with repeats), after filtering')
    assert startup._data(SimpleNamespace(dataset=ConcatDataset([repeated, Crowds()]))) == (
        '6 images and 0 objects (9 images with repeats), after filtering')
    for data in (repeated, ConcatDataset([Crowds(), Crowds()])):  # of any class of data sets
        with pytest.raises(DataError, match='no object of the training data is used'):
            StartupHook().before_train(SimpleNamespace(train_dataloader=SimpleNamespace(dataset=data)))


class Crowds(Dataset):
    def __len__(self):
        return 3

    def get_data_info(self, index):
        return dict(instances=[dict(ignore_flag=1)])


def test_hook_logs_it_once_and_on_the_first_process_only(started, monkeypatch):
    """Neither the scope nor the batch sampler need be known."""
    runner, _, log = started(hook='CompileHook')
    assert log.count('\nversions ') == 1 and re.search(r'\ncompile +blocks of the backbone\n', log)
    runner.default_scope = SimpleNamespace(scope_name='theirs')
    runner._world_size = 3
    assert lines_of(runner)['batch'] == '6 images per step (2 per process x 3 processes x 1 accumulated)'
    told = []
    monkeypatch.setattr(startup, 'check_schedule', lambda cfg, length: told.append(length))
    monkeypatch.setattr(startup, 'look', lambda cfg, *numbers: startup.Look({}, [str(numbers)]))
    monkeypatch.setattr(startup, 'print_log', lambda text, **_: told.append(text))
    for runner.train_loop.iterations in (0, 3):  # a resumed run was told before
        StartupHook().before_train(runner)
    assert told[0] == 3 and '(3, 6)' in told[1] and len(told) == 2
    del runner.train_dataloader.batch_sampler.batch_size
    runner.cfg.compile, runner.cfg.timed = True, [dict(why='as long as it may')]
    del runner.train_loop.val_interval  # which loops of others may not have
    lines = lines_of(runner)
    assert 'theirs' not in lines['versions'] and 'batch sampler' in lines['batch']
    assert lines['schedule'].endswith('; no validation')
    assert lines['compile'] == 'the whole model' and lines['length'] == 'as long as it may'
    monkeypatch.setattr(startup, 'is_first_process', lambda: False)
    monkeypatch.setattr(processes, 'is_first_process', lambda: False)
    StartupHook().before_train(None)  # looks at nothing


def test_a_look_that_fails_stops_no_training(started, monkeypatch):
    """Data of the user's own kind may lead it to anything."""
    monkeypatch.setattr(startup, 'look', lambda *args: 1 / 0)
    _, _, log = started()
    assert 'division by zero' in log and '\nversions ' in log and '\nlabels ' not in log
