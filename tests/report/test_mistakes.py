"""The worst mistakes of a classifier: what is counted, listed and drawn."""
import json

import numpy as np
import pytest
import torch
from mmengine.structures import BaseDataElement
from PIL import Image

from xcit_dense.report import classification
from xcit_dense.report.classification import (
    Names,
    Result,
    draw_mistakes,
    mistakes_of,
    names_of,
    result_of,
    write_mistakes,
)

RESULTS = [Result('a.png', 0, 0, 0.9), Result('b.png', 0, 2, 0.6), Result('/far/deep/c.png', 1, 2, 0.8),
           Result('d.png', 2, 2, 0.7), Result('e.png', 0, 2, None)]
COLOUR = 1, 250, 3  # no text has it
NAMES = Names(['cat', 'dog, hound', 'newt'], ['cat', 'dog, hound', 'newt'])


def sample(**fields):
    meta = {key: fields.pop(key) for key in ('img_path', 'sample_idx') if key in fields}
    return BaseDataElement(metainfo=meta, **{key: torch.tensor(value) for key, value in fields.items()})


@pytest.mark.parametrize('fields, wanted', (
    (dict(gt_label=[1], pred_label=[0], pred_score=[0.75, 0.25], img_path='a.png'), Result('a.png', 1, 0, 0.75)),
    (dict(gt_label=[1], pred_label=[1], sample_idx=7), Result('image 7', 1, 1, None)),
    (dict(gt_label=[0, 1], pred_label=[1]), None), (dict(gt_label=[1], pred_label=[0, 1]), None),
    (dict(pred_label=[1]), None), (dict(gt_label=[1]), None)))
def test_a_result_has_one_truth_and_one_prediction(fields, wanted):
    assert result_of(sample(**fields)) == wanted


def test_mistakes_are_those_that_are_wrong_the_surest_first(tmp_path, captions):
    """With the names of the data for the truth, and those of the model for the predictions."""
    found, names = mistakes_of(RESULTS), Names(NAMES.truth, [*'xyz'])
    assert [result.path for result in found] == ['/far/deep/c.png', 'b.png', 'e.png']
    write_mistakes(tmp_path / 'm.json', found, names)
    assert json.loads((tmp_path / 'm.json').read_text())[0] == dict(
        path='/far/deep/c.png', truth='dog, hound', prediction='z', probability=0.8)
    draw_mistakes(tmp_path / 'm.png', found, names, 5, read)
    assert captions[:2] == ['true: dog, hound', 'predicted: z']


@pytest.mark.parametrize('classes, wanted', (
    (NAMES.truth, NAMES.truth), ((), ['0', '1', '2']), (('cat', ), ['cat', '1', '2']),
    (('crane', 'newt', 'crane'), ['crane (0)', 'newt', 'crane (2)'])))
def test_every_class_has_a_name_of_its_own(classes, wanted):
    assert names_of(classes, RESULTS) == (wanted, wanted)
    assert names_of('abc', RESULTS, classes or '012') == ([*'abc'], wanted)


def test_classes_of_imagenet_have_short_names():
    """mmpretrain's have all synonyms."""
    categories = pytest.importorskip('mmpretrain.datasets.categories').IMAGENET_CATEGORIES
    names = names_of(categories, RESULTS)
    assert names.truth == names.prediction and names.truth[:2] == ['tench', 'goldfish'] and len(names.truth) == 1000


@pytest.fixture
def captions(monkeypatch):
    """The texts of a sheet, as wide as they may be."""
    seen = []
    monkeypatch.setattr(classification, 'fit_text', lambda text, font, width: seen.append(text) or text[:9])
    return seen


def read(path):
    if path == 'e.png':
        raise OSError('gone')
    return np.full((40, 90, 3), COLOUR, np.uint8)


@pytest.mark.parametrize('number', (0, 1, 3, 26))
def test_the_sheet_has_the_worst_mistakes(number, captions, tmp_path):
    found = (mistakes_of(RESULTS) * 9)[:number]
    draw_mistakes(tmp_path / 'm.png', found, NAMES, 30, read)
    sheet = np.asarray(Image.open(tmp_path / 'm.png'))
    pictures = (sheet == COLOUR).all(2).sum() / (300 * 133)
    assert pictures == min(number, 20) - len([result for result in found[:20] if result.path == 'e.png'])
    assert len(captions) == 3 * min(number, 20)
    assert captions[:3] == ['true: dog, hound', 'predicted: newt', 'deep/c.png'][:len(captions)]
    assert sheet.shape[1] <= 1584 and sheet.shape[0] <= 1260


def test_names_in_other_alphabets_are_legible(tmp_path):
    """With a font of the system, otherwise as codes."""
    for place, letter in enumerate('犬猫'):
        names = [letter * 2, 'dog', 'newt']
        draw_mistakes(tmp_path / f'{place}.png', mistakes_of(RESULTS), Names(names, names), 5, read)
    assert (tmp_path / '0.png').read_bytes() != (tmp_path / '1.png').read_bytes()
