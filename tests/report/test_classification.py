"""The report on a test with mmpretrain: its content, and what the hook makes of it, alone and through the tool."""
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement
from PIL import Image
from report.tested import cells, runner_of

from helpers.tools import run_tool
from xcit_dense.errors import OutputError
from xcit_dense.report import hooks
from xcit_dense.report.classification import ClassificationRecorder, Result, names_of
from xcit_dense.report.hooks import FILES, ReportHook

pytest.importorskip('mmpretrain')
PAIRS = (0, 0), (0, 1), (1, 1), (1, 2), (1, 2), (2, 2)


def sample(**fields):
    meta = {key: fields.pop(key) for key in ('img_path', 'sample_idx') if key in fields}
    return BaseDataElement(metainfo=meta, **{key: torch.tensor(value) for key, value in fields.items()})


def recorded(folder, pairs, names):
    """Return the content for images, given as class and prediction, and what was logged.

    The predictions are the less sure the later they come. After test-time augmentation, only the scores are right.
    """
    samples = []
    for place, (truth, prediction) in enumerate(pairs):
        scores = [0.01] * len(names)
        scores[prediction] = 0.9 - 0.1 * place
        path = folder / f'{place}.png'
        Image.new('RGB', (30, 20), (place, 0, 0)).save(path)
        samples.append(sample(img_path=str(path), gt_label=[truth], pred_label=[0], pred_score=scores))
    runner = runner_of('mmpretrain', samples, metainfo=dict(classes=names))
    recorder = ClassificationRecorder(runner)
    recorder.see(None, samples)
    return recorder.content({'accuracy/top1': 50.}), runner.said


def test_classes_are_sorted_by_accuracy_and_those_without_images_are_last(tmp_path):
    content, _ = recorded(tmp_path, PAIRS, ('cat', 'dog', 'newt', 'owl'))
    assert [(row.name, row.values, row.note) for row in content.classes[1]] == [
        ('dog', dict(images=3, correct=1, accuracy=pytest.approx(100 / 3), precision=50.), ''),
        ('cat', dict(images=2, correct=1, accuracy=50., precision=100.), ''),
        ('newt', dict(images=1, correct=1, accuracy=100., precision=pytest.approx(100 / 3)), ''),
        ('owl', dict(images=0, correct=0, accuracy=None, precision=None), 'no images')]
    assert content.notes == ['No images: owl.'] and content.metrics == {'accuracy/top1': 50.}
    assert content.confusion.counts.tolist() == [[1, 1, 0, 0], [0, 1, 2, 0], [0, 0, 1, 0], [0] * 4]
    assert dict(content.facts)['test data'] == '6 images of 4 classes'
    content, _ = recorded(tmp_path, [*PAIRS, (0, 3)], ('cat', 'dog', 'newt', 'owl'))  # an owl is predicted
    assert [row.note for row in content.classes[1]] == ['', '', '', 'no images']


def test_mistakes_come_first_the_surest_first(tmp_path):
    """Then the other images, the least sure first. An image that is gone has no picture."""
    content, said = recorded(tmp_path, PAIRS, ('cat', 'dog', 'newt'))
    first = content.images[1][0]
    assert [row.name for row in content.images[1]] == [str(tmp_path / f'{i}.png') for i in (1, 3, 4, 5, 2, 0)]
    assert first.values == dict(true='cat', predicted='dog', probability=pytest.approx(80))
    (tmp_path / '3.png').unlink()
    pictures = list(content.pictures)
    assert [picture.caption for picture in pictures] == ['cat predicted as dog (80.0%)',
                                                         'dog predicted as newt (50.0%)']
    assert pictures[1].prediction is None and np.array_equal(pictures[1].truth[0, 0], [4, 0, 0])
    assert len(said) == 1 and f'no picture of {tmp_path}/3.png' in said[0]
    content, said = recorded(tmp_path, PAIRS[::2][:2], ('cat', 'dog'))  # no mistakes
    assert len(content.images[1]) == 2 and list(content.pictures) == said == []


def test_every_class_has_a_name():
    """The number if it has no other; mmpretrain's of ImageNet have all synonyms."""
    results = [Result('a.png', 0, 2, 0.9), Result('b.png', 1, 0, 0.6)]
    for classes, wanted in (((), ['0', '1', '2']), (('dog, hound', ), ['dog, hound', '1', '2'])):
        assert names_of(classes, results) == wanted
    names = names_of(pytest.importorskip('mmpretrain.datasets.categories').IMAGENET_CATEGORIES, results)
    assert names[:2] == ['tench', 'goldfish'] and len(names) == 1000


SAMPLES = [sample(sample_idx=7 + i, gt_label=[i], pred_score=[0.7, 0.3]) for i in (0, 1, 1)]


def report(folder, samples, framework='mmpretrain', count=None, **options):
    """Let a hook see samples as a test would show them, of a data set without files; return what it logs."""
    runner = runner_of(framework, [None] * (count or len(samples)))
    hook = ReportHook(str(folder), **options)
    hook.before_test(runner)
    for place in range(0, len(samples), 2):
        hook.after_test_iter(runner, place, outputs=samples[place:place + 2])
    hook.after_test_epoch(runner, {})
    hook.after_test(runner)
    return runner.said


@pytest.mark.parametrize('samples, framework, words', (
    *((samples, 'mmpretrain', 'it needs one label and the scores of all classes for each image') for samples in (
        [], [sample(gt_label=[0, 1], pred_score=[1.])], [sample(pred_score=[1.])], [sample(gt_label=[0])],
        [sample(gt_label=[0], pred_score=[1.]), sample(gt_label=[], pred_score=[1.])])),
    ([sample()], 'mmrotate', 'not for mmrotate')))
def test_without_a_single_label_or_the_framework_there_is_no_report_but_a_word(samples, framework, words, tmp_path):
    said, = report(tmp_path / 'shown', samples, framework)
    assert said.startswith('no report written: ') and words in said
    assert not (tmp_path / 'shown').exists()


def test_a_data_set_without_files_and_names(tmp_path):
    """And one sample more than it has, as a sampler may give that fills the last batch of several processes."""
    table, picture, done = report(tmp_path, SAMPLES, count=2)
    assert 'worst first' in table and 'no picture of image 8: ' in picture
    assert done.startswith('wrote report.html, ') and done.endswith(f' into {tmp_path}')
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith('.')} == {*FILES}


def test_ctrl_c_while_training_images_are_tested_costs_only_their_metrics(tmp_path, monkeypatch):
    monkeypatch.setattr(hooks, 'compare_with_training', Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        report(tmp_path, SAMPLES)
    assert {path.name for path in tmp_path.iterdir() if not path.name.startswith('.')} == {*FILES}


def test_only_files_of_an_earlier_report_are_replaced(tmp_path):
    for _ in range(2):
        report(tmp_path, SAMPLES)
    (tmp_path / 'confusion.csv').write_text('mine')
    with pytest.raises(OutputError, match='confusion.csv.*--overwrite'):
        report(tmp_path, SAMPLES)
    report(tmp_path, SAMPLES, overwrite=True)
    (tmp_path / 'file').write_text('')
    with pytest.raises(OutputError, match='it is not a folder'):  # an error before the test
        report(tmp_path / 'file', [])


@pytest.mark.parametrize('of, place, error', (
    (ClassificationRecorder, 'see', OSError(28, 'No space left on device')),
    (ClassificationRecorder, 'content', ZeroDivisionError('why')),
    (hooks, 'write_page', OSError(28, 'No space left on device'))))
def test_a_problem_of_the_report_is_a_warning(of, place, error, tmp_path, monkeypatch):
    monkeypatch.setattr(of, place, Mock(side_effect=error))
    said = report(tmp_path, SAMPLES)
    assert len(said) == 1 + (place == 'write_page')
    assert f'the report in {tmp_path} is incomplete: {type(error).__name__}: {error}' in said[-1]


@pytest.fixture
def prepared(tmp_path):
    """Config and weights of a model that takes every image for a cat, with the probability 0.5: 1 cat, 4 others."""
    from mmpretrain.models import LeNet5
    for place, name in enumerate(('cat', 'dog', 'dog', 'newt', 'newt')):
        (tmp_path / 'data' / name).mkdir(parents=True, exist_ok=True)
        Image.new('L', (40, 30), 50 * place).save(tmp_path / 'data' / name / f'{place}.png')
    state = {name: torch.zeros_like(value) for name, value in LeNet5(3).state_dict().items()}
    last = [name for name in state if name.endswith('bias')][-1]
    state[last] = torch.tensor((0.5, 0.3, 0.2)).log()
    torch.save({f'backbone.{name}': value for name, value in state.items()}, tmp_path / 'w.pth')
    (tmp_path / 'config.py').write_text(f"""
custom_imports = dict(imports=['xcit_dense', 'mmpretrain.datasets', 'mmpretrain.evaluation', 'mmpretrain.models'])
runner_type = 'DenseRunner'
default_scope = 'mmpretrain'
data_preprocessor = dict(num_classes=3, mean=[0.], std=[255.])
model = dict(type='ImageClassifier', backbone=dict(type='LeNet5', num_classes=3),
             head=dict(type='ClsHead', loss=dict(type='CrossEntropyLoss')))
test_dataloader = dict(
    batch_size=3, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CustomDataset', data_root={str(tmp_path / 'data')!r}, with_label=True, pipeline=[
        dict(type='LoadImageFromFile', color_type='grayscale'), dict(type='Resize', scale=32),
        dict(type='PackInputs')]))
test_evaluator = dict(type='Accuracy', topk=(1, ))
test_cfg = dict()
""")
    return tmp_path / 'config.py', tmp_path / 'w.pth'


def test_a_test_of_a_classifier_reports(prepared, tmp_path):
    assert 'per class, worst first' in run_tool('test.py', *prepared, '--show-dir', 'shown', cwd=tmp_path).stdout
    assert cells(tmp_path / 'shown/confusion.csv')[1:] == [
        ['cat', '1', '0', '0'], ['dog', '2', '0', '0'], ['newt', '2', '0', '0']]
    assert [row[:5] for row in cells(tmp_path / 'shown/per_class.csv')] == [
        ['class', 'images', 'correct', 'accuracy', 'precision'], ['dog', '2', '0', '0.0', ''],
        ['newt', '2', '0', '0.0', ''], ['cat', '1', '1', '100.0', '20.0']]
    assert np.asarray(Image.open(tmp_path / 'shown/confusion_matrix.png')).std() > 0


def test_several_processes_report_each_image_once(prepared, two_processes, tmp_path):
    """The sampler gives one of five twice."""
    first, second = two_processes.run_tool('test.py', *prepared, '--show-dir', tmp_path / 'shown',
                                           '--work-dir', tmp_path)
    assert 'worst first' in first.stdout and 'worst first' not in second.stdout
    assert [row[1] for row in cells(tmp_path / 'shown/confusion.csv')[1:]] == ['1', '2', '2']


def test_the_metrics_are_logged_before_the_report(prepared, tmp_path, monkeypatch):
    """So that a problem of the report loses nothing, and the tool ends well."""
    monkeypatch.setattr(hooks, 'write_page', Mock(side_effect=OSError(28, 'No space left on device')))
    done = run_tool('test.py', *prepared, '--report', 'shown', '--at-least', 'accuracy/top1=20', cwd=tmp_path)
    metrics, warning = (done.stdout.index(text) for text in ('accuracy/top1: 20.0', 'No space left on device'))
    assert metrics < warning and 'is incomplete' in done.stdout
