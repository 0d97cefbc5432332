"""The report of a test with mmpretrain, through the tool and in several processes."""
import csv
import json
import logging
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
    assert '4 mistakes among 6 images' in done.stdout and 'dog taken for cat (2)' in done.stdout
    with open(tmp_path / 'shown/confusion.csv', newline='') as file:
        assert list(csv.reader(file))[1:] == [['cat', '2', '0', '0'], ['dog', '2', '0', '0'], ['newt', '2', '0', '0']]
    found = json.loads((tmp_path / 'shown/mistakes.json').read_text())
    assert {mistake['path'] for mistake in found} == {str(data / f'{name}/{i}.png') for name in ('dog', 'newt')
                                                      for i in (0, 1)}
    assert all(mistake['prediction'] == 'cat' and mistake['probability'] == pytest.approx(0.5) for mistake in found)
    for name in FILES[1::2]:
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
    for names, wanted, is_told in ((('x', 'y', 'z'), 'cat taken for x (2)', True),
                                   (('cat', 'dog', 'newt'), 'cat taken for cat (2)', True),
                                   (('aaa', 'cat', 'newt'), 'cat taken for aaa (2)', False),
                                   (('x', 'y'), 'cat taken for aaa (2)', True)):  # not those of three outputs
        torch.save(dict(state_dict=state, meta=dict(dataset_meta=dict(classes=names))), prepared[1])
        done = run_tool('test.py', *prepared, '--show-dir', 'shown', cwd=tmp_path)
        assert wanted in done.stdout and ('has other classes than' in done.stdout) == is_told
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


def report(folder, samples, dataset=None):
    """Let a hook see samples as a test would show them, and return what it says."""
    said = []
    logger = SimpleNamespace(info=said.append, log=lambda level, text: said.append(text) or said.append(level))
    loader = SimpleNamespace(dataset=dataset or [None] * len(samples))
    cfg = Config(dict(test_dataloader=dict(dataset=dict(type='CustomDataset', pipeline=[
        dict(type='LoadImageFromFile')]))))
    runner = SimpleNamespace(test_dataloader=loader, cfg=cfg, logger=logger)
    hook = ReportHook(str(folder))
    hook.before_test(runner)
    for place in range(0, len(samples), 2):
        hook.after_test_iter(runner, place, outputs=samples[place:place + 2])
    hook.after_test(runner)
    return said


@pytest.mark.parametrize('samples', (
    [], [sample(gt_label=[0, 1], pred_label=[0])], [sample(pred_label=[0])],
    [sample(gt_label=[0], pred_label=[0]), sample(gt_label=[], pred_label=[0])]))
def test_images_without_a_single_label_have_no_report_but_a_word(samples, tmp_path):
    said, level = report(tmp_path / 'shown', samples)
    assert 'no single label' in said and level == logging.WARNING and not (tmp_path / 'shown').exists()


def test_a_data_set_without_files_and_names(tmp_path):
    """And one sample more than it has, as a sampler may give that fills the last batch of several processes."""
    samples = [sample(gt_label=[i], pred_label=[0]) for i in (0, 1, 1)]
    said, = report(tmp_path, samples, dataset=[None] * 2)
    assert '1 mistake among 2 images' in said and '1 taken for 0' in said
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith('.')} == set(FILES)


def test_a_folder_that_cannot_be_written_into(tmp_path):
    (tmp_path / 'shown').write_text('')
    with pytest.raises(OutputError, match='no folder'):
        report(tmp_path / 'shown', [])


@pytest.mark.parametrize('cfg', (
    dict(default_scope='mmpretrain'), dict(model=dict(type='mmpretrain.ImageClassifier')),
    dict(default_scope='mmpretrain', custom_hooks=[dict(type='A')])))
def test_classifiers_get_the_report_and_no_drawing(cfg, tmp_path, monkeypatch):
    import mmpretrain.models  # noqa: F401
    monkeypatch.chdir(tmp_path)
    cfg = Config(cfg)
    own = cfg.get('custom_hooks') or []
    options.set_show_dir(cfg, 'shown', overwrite=True)
    assert cfg.custom_hooks == [*own, dict(type='ReportHook', out_dir=str(tmp_path / 'shown'), overwrite=True)]
    assert 'default_hooks' not in cfg
