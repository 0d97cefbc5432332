"""The report on a test with mmpretrain: classes, images and pictures."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement
from PIL import Image

from xcit_dense.report.classification import ClassificationRecorder

pytest.importorskip('mmpretrain')


def recorded(folder, pairs, names, known=()):
    """Return the content for images with pairs of a class and a prediction, and what was logged.

    The predictions are the less sure the later they come.
    """
    said, samples = [], []
    for place, (truth, prediction) in enumerate(pairs):
        scores = torch.full((len(names), ), 0.01)
        scores[prediction] = 0.9 - 0.1 * place
        path = folder / f'{place}.png'
        Image.new('RGB', (30, 20), (place, 0, 0)).save(path)
        samples.append(BaseDataElement(metainfo=dict(img_path=str(path)), gt_label=torch.tensor([truth]),
                                       pred_label=torch.tensor([prediction]), pred_score=scores))
    dataset = type('Data', (list, ), dict(metainfo=dict(classes=names)))(samples)
    cfg = Config(dict(default_scope='mmpretrain', test_dataloader=dict(dataset=dict(
        type='CustomDataset', pipeline=[dict(type='LoadImageFromFile')]))))
    runner = SimpleNamespace(model=torch.nn.Identity(), test_dataloader=SimpleNamespace(
        dataset=dataset), cfg=cfg, default_scope=SimpleNamespace(
        scope_name='mmpretrain'), logger=SimpleNamespace(warning=said.append))
    recorder = ClassificationRecorder(runner, known)
    recorder.see(None, samples)
    return recorder.content({'accuracy/top1': 50.}), said, recorder


PAIRS = (0, 0), (0, 1), (1, 1), (1, 2), (1, 2), (2, 2)


def test_classes_are_sorted_by_accuracy_and_those_without_images_are_last(tmp_path):
    content, *_ = recorded(tmp_path, PAIRS, ('cat', 'dog', 'newt', 'owl'))
    assert [(row.name, row.values, row.note) for row in content.classes[1]] == [
        ('dog', dict(images=3, correct=1, accuracy=pytest.approx(100 / 3), precision=50.), ''),
        ('cat', dict(images=2, correct=1, accuracy=50., precision=100.), ''),
        ('newt', dict(images=1, correct=1, accuracy=100., precision=pytest.approx(100 / 3)), ''),
        ('owl', dict(images=0, correct=0, accuracy=None, precision=None), 'no images')]
    assert content.notes == ['No images: owl.'] and content.metrics == {'accuracy/top1': 50.}
    assert content.confusion.counts.tolist() == [[1, 1, 0, 0], [0, 1, 2, 0], [0, 0, 1, 0], [0] * 4]
    assert dict(content.facts)['test data'] == '6 images of 4 classes'


def test_mistakes_come_first_the_surest_first(tmp_path):
    """Then the other images, the least sure first. An image that is gone has no picture."""
    content, said, recorder = recorded(tmp_path, PAIRS, ('cat', 'dog', 'newt'), known=('x', 'y', 'z'))
    first = content.images[1][0]
    assert [row.name for row in content.images[1]] == [str(tmp_path / f'{i}.png') for i in (1, 3, 4, 5, 2, 0)]
    assert first.values == dict(true='cat', predicted='y', probability=pytest.approx(80))
    (tmp_path / '3.png').unlink()
    pictures = list(content.pictures)
    assert [picture.caption for picture in pictures] == ['cat predicted as y (80.0%)', 'dog predicted as z (50.0%)']
    assert pictures[1].prediction is None and np.array_equal(pictures[1].truth[0, 0], [4, 0, 0])
    assert len(said) == 1 and f'no picture of {tmp_path}/3.png' in said[0]
    assert recorder.summary() == '3 mistakes among 6 images, most often dog predicted as z (2)'


def test_a_test_without_mistakes(tmp_path):
    content, said, recorder = recorded(tmp_path, PAIRS[::2][:2], ('cat', 'dog'))
    assert len(content.images[1]) == 2 and list(content.pictures) == said == []
    assert recorder.summary() == '0 mistakes among 2 images'
