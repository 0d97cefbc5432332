"""The report of a test with mmpretrain, through the tool and in several processes."""
import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from PIL import Image

from helpers.tools import run_tool
from xcit_dense.config import options
from xcit_dense.errors import OutputError
from xcit_dense.report.classification import ClassificationRecorder
from xcit_dense.report.hook import FILES, ReportHook

pytest.importorskip('mmpretrain')

CONFIG = '''
custom_imports = dict(imports=['xcit_dense', 'mmpretrain.datasets', 'mmpretrain.evaluation', 'mmpretrain.models'])
runner_type = 'DenseRunner'
default_scope = 'mmpretrain'
data_preprocessor = dict(num_classes=3, mean=[0.], std=[255.])
model = dict(type='ImageClassifier', backbone=dict(type='LeNet5', num_classes=3),
             head=dict(type='ClsHead', loss=dict(type='CrossEntropyLoss')))
test_dataloader = dict(
    batch_size=4, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CustomDataset', data_root={root!r}, with_label=True, pipeline=[
        dict(type='LoadImageFromFile', color_type='grayscale'), dict(type='Resize', scale=32),
        dict(type='PackInputs')]))
test_evaluator = dict(type='Accuracy', topk=(1, ))
test_cfg = dict()
'''
SHARES = (0.5, 0.3, 0.2)
ALL_FILES = {*FILES, *ClassificationRecorder.files}


@pytest.fixture
def data(tmp_path):
    """Two images of each of three classes."""
    for name in ('cat', 'dog', 'newt'):
        (tmp_path / 'data' / name).mkdir(parents=True)
        for number in range(2):
            Image.new('L', (40, 30), 50 * number).save(tmp_path / 'data' / name / f'{number}.png')
    return tmp_path / 'data'


@pytest.fixture
def prepared(data, tmp_path):
    """Config and weights of a model that takes every image for a cat."""
    from mmpretrain.models import LeNet5
    state = {name: torch.zeros_like(value) for name, value in LeNet5(3).state_dict().items()}
    last = [name for name in state if name.endswith('bias')][-1]
    state[last] = torch.tensor(SHARES).log()
    torch.save({f'backbone.{name}': value for name, value in state.items()}, tmp_path / 'w.pth')
    (tmp_path / 'config.py').write_text(CONFIG.format(root=str(data)))
    return tmp_path / 'config.py', tmp_path / 'w.pth'


def test_a_test_of_a_classifier_reports(prepared, data, tmp_path):

    def run(*args, **more):
        return run_tool('test.py', *prepared, '--show-dir', 'shown', *args, cwd=tmp_path, **more)

    done = run()
    assert '4 mistakes among 6 images' in done.stdout and 'dog predicted as cat (2)' in done.stdout
    with open(tmp_path / 'shown/confusion.csv', newline='') as file:
        assert list(csv.reader(file))[1:] == [['cat', '2', '0', '0'], ['dog', '2', '0', '0'], ['newt', '2', '0', '0']]
    found = json.loads((tmp_path / 'shown/mistakes.json').read_text())
    assert {mistake['path'] for mistake in found} == {str(data / f'{name}/{i}.png') for name in ('dog', 'newt')
                                                      for i in (0, 1)}
    assert all(mistake['prediction'] == 'cat' and mistake['probability'] == pytest.approx(0.5) for mistake in found)
    with open(tmp_path / 'shown/per_class.csv', newline='') as file:
        assert [row[:4] for row in csv.reader(file)] == [
            ['class', 'images', 'correct', 'accuracy'], ['dog', '2', '0', '0.0'], ['newt', '2', '0', '0.0'],
            ['cat', '2', '2', '100.0']]
    for name in ('confusion_matrix.png', 'worst_mistakes.png'):
        assert np.asarray(Image.open(tmp_path / 'shown' / name)).std() > 0
    run()  # its own files it writes again
    (tmp_path / 'shown/confusion.csv').write_text('mine')
    done = run(check=False)
    assert done.returncode == 1 and 'confusion.csv' in done.message and '--overwrite' in done.message
    run('--overwrite')


def test_predictions_have_the_names_of_the_checkpoint(prepared, data, tmp_path):
    """A folder of another name shifts the numbers of the data; what the model says keeps its names."""
    state = torch.load(prepared[1])
    (data / 'dog').rename(data / 'aaa')
    for names, wanted, is_told in ((('x', 'y', 'z'), 'cat predicted as x (2)', True),
                                   (('cat', 'dog', 'newt'), 'cat predicted as cat (2)', True),
                                   (('aaa', 'cat', 'newt'), 'cat predicted as aaa (2)', False),
                                   (('x', 'y'), 'cat predicted as aaa (2)', True)):  # not those of three outputs
        torch.save(dict(state_dict=state, meta=dict(dataset_meta=dict(classes=names))), prepared[1])
        done = run_tool('test.py', *prepared, '--show-dir', 'shown', cwd=tmp_path)
        assert wanted in done.stdout and ('has different classes than' in done.stdout) == is_told
    with open(tmp_path / 'shown/confusion.csv', newline='') as file:
        assert [row[0] for row in csv.reader(file)][1:] == ['aaa', 'cat', 'newt']


def test_several_processes_report_each_image_once(prepared, data, two_processes, tmp_path):
    """The sampler gives one of seven twice."""
    Image.new('L', (9, 9)).save(data / 'newt/2.png')
    first, second = two_processes.run_tool('test.py', *prepared, '--show-dir', tmp_path / 'shown',
                                           '--work-dir', tmp_path)
    assert '5 mistakes among 7 images' in first.stdout and 'mistakes' not in second.stdout
    assert len(json.loads((tmp_path / 'shown/mistakes.json').read_text())) == 5


def sample(**fields):
    return BaseDataElement(**{key: torch.tensor(value) for key, value in fields.items()})


def report(folder, samples, dataset=None, cfg=None):
    """Let a hook see samples as a test would show them, and return what it logs."""
    said, log = [], lambda text, **_: said.append(text)
    loader = SimpleNamespace(dataset=dataset or [None] * len(samples))
    cfg = Config(cfg or dict(default_scope='mmpretrain', test_dataloader=dict(dataset=dict(
        type='CustomDataset', pipeline=[dict(type='LoadImageFromFile')]))))
    runner = SimpleNamespace(test_dataloader=loader, cfg=cfg, logger=SimpleNamespace(info=log, warning=log),
                             default_scope=SimpleNamespace(scope_name='mmpretrain'), model=torch.nn.Identity())
    hook = ReportHook(str(folder))
    hook.before_test(runner)
    for place in range(0, len(samples), 2):
        hook.after_test_iter(runner, place, outputs=samples[place:place + 2])
    hook.after_test_epoch(runner, {})
    hook.after_test(runner)
    return said


@pytest.mark.parametrize('samples', (
    [], [sample(gt_label=[0, 1], pred_label=[0])], [sample(pred_label=[0])],
    [sample(gt_label=[0], pred_label=[0]), sample(gt_label=[], pred_label=[0])]))
def test_images_without_a_single_label_have_no_report_but_a_word(samples, tmp_path):
    said, = report(tmp_path / 'shown', samples)
    assert 'no report written: it needs one label and one prediction per image' in said
    assert not (tmp_path / 'shown').exists()


def test_a_data_set_without_files_and_names(tmp_path):
    """And one sample more than it has, as a sampler may give that fills the last batch of several processes."""
    samples = [sample(gt_label=[i], pred_label=[0]) for i in (0, 1, 1)]
    table, picture, done = report(tmp_path, samples, dataset=[None] * 2)
    assert '1 mistake among 2 images' in table and '1 predicted as 0' in table and 'no picture of image' in picture
    assert done.startswith('wrote report.html, ') and done.endswith(f' into {tmp_path}')
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith('.')} == ALL_FILES


def test_a_folder_that_cannot_be_written_into(tmp_path):
    """An error before the test."""
    (tmp_path / 'shown').write_text('')
    with pytest.raises(OutputError, match='it is not a folder'):
        report(tmp_path / 'shown', [])


def test_a_model_of_another_framework_has_no_report(tmp_path):
    said, = report(tmp_path / 'shown', [sample()], cfg=dict(default_scope='mmrotate'))
    assert said == 'no report written: there are reports for mmdet, mmseg, mmpretrain, not for models of mmrotate'
    assert not (tmp_path / 'shown').exists()


@pytest.mark.parametrize('place', ('see', 'content', 'write_more'))
@pytest.mark.parametrize('error, reason', ((OSError(28, 'No space left on device'), '[Errno 28] No space left'),
                                           (ZeroDivisionError('why'), 'ZeroDivisionError: why')))
def test_a_problem_of_the_report_is_a_warning(place, error, reason, tmp_path, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(ClassificationRecorder, place, fail)
    said = report(tmp_path, [sample(gt_label=[i], pred_label=[0]) for i in (0, 1, 1)])
    assert len(said) == 1 + (place == 'write_more')
    assert f'the report in {tmp_path} is incomplete: {reason}' in said[-1]


def test_the_metrics_are_logged_before_the_report(prepared, tmp_path, monkeypatch):
    """So that a problem of the report loses nothing, and the tool ends well."""
    def fail(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr(ClassificationRecorder, 'write_more', fail)
    done = run_tool('test.py', *prepared, '--report', 'shown', '--at-least', 'accuracy/top1=33', cwd=tmp_path)
    metrics, warning = (done.stdout.index(text) for text in ('accuracy/top1: 33.3', 'No space left on device'))
    assert metrics < warning and 'is incomplete' in done.stdout


def test_hooks_of_the_config_stay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = Config(dict(custom_hooks=[dict(type='A')]))
    options.set_report(cfg, 'shown', overwrite=True)
    assert cfg.custom_hooks == [dict(type='A'), dict(type='ReportHook', out_dir=str(tmp_path / 'shown'),
                                                     overwrite=True)]
