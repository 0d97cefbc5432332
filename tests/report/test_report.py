"""Confusion matrix and worst mistakes: what is counted, told and drawn."""
import csv
import json

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from mmengine.structures import BaseDataElement
from PIL import Image

from xcit_dense.report import mistakes as mistakes_module
from xcit_dense.report.confusion import confusion_of, draw_confusion, most_confused, write_confusion
from xcit_dense.report.mistakes import draw_mistakes, write_mistakes
from xcit_dense.report.results import Names, Result, mistakes_of, names_of, result_of

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


def test_mistakes_are_those_that_are_wrong_the_surest_first(tmp_path):
    found = mistakes_of(RESULTS)
    assert [result.path for result in found] == ['/far/deep/c.png', 'b.png', 'e.png']
    write_mistakes(tmp_path / 'm.json', found, NAMES)
    assert json.loads((tmp_path / 'm.json').read_text())[0] == dict(
        path='/far/deep/c.png', truth='dog, hound', prediction='newt', probability=0.8)


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


def test_truth_and_predictions_have_names_of_their_own(tmp_path, drawn, captions):
    names = Names([*'abc'], [*'xyz'])
    counts = np.array([[1, 0, 2], [0, 0, 1], [0, 0, 1]])
    write_confusion(tmp_path / 'c.csv', counts, names)
    with open(tmp_path / 'c.csv', newline='') as file:
        assert [row[0] for row in csv.reader(file)][1:] == [*'abc']
    assert (tmp_path / 'c.csv').read_text().splitlines()[0].endswith('x,y,z')
    draw_confusion(tmp_path / 'c.png', counts, names)
    assert drawn['x'] == [*'xyz'] and drawn['y'] == ['a (3)', 'b (1)', 'c (1)']
    draw_mistakes(tmp_path / 'm.png', mistakes_of(RESULTS), names, 5, read)
    assert captions[:2] == ['true: b', 'predicted: z']
    write_mistakes(tmp_path / 'm.json', mistakes_of(RESULTS), names)
    assert json.loads((tmp_path / 'm.json').read_text())[0]['truth'] == 'b'


def test_the_table_has_truth_in_rows(tmp_path):
    pytest.importorskip('mmpretrain')
    counts = confusion_of(RESULTS, 3)
    assert counts.tolist() == [[1, 0, 2], [0, 0, 1], [0, 0, 1]]
    write_confusion(tmp_path / 'c.csv', counts, NAMES)
    with open(tmp_path / 'c.csv', newline='') as file:
        head, *rows = csv.reader(file)
    assert head[1:] == NAMES.prediction and rows[0] == ['cat', '1', '0', '2'] and rows[1][0] == 'dog, hound'


def test_the_most_confused_of_many_classes():
    counts = np.diag(np.full(9, 50))
    counts[7, 2], counts[2, 7], counts[8, 1], counts[0, 3] = 4, 4, 7, 1
    assert most_confused(counts, 2).tolist() == [2, 7]  # with each other: 8, more than 7 one way
    assert most_confused(counts, 4).tolist() == [1, 2, 7, 8]
    assert most_confused(counts, 7).tolist() == [0, 1, 2, 3, 4, 7, 8]
    assert most_confused(counts, 9).tolist() == list(range(9))


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn with matplotlib: the matrix, the texts in its cells, the title."""
    seen = dict(texts={})
    show, text, title = Axes.imshow, Axes.text, Figure.suptitle
    monkeypatch.setattr(Axes, 'imshow', lambda axes, x, **o: (seen.update(shares=x), show(axes, x, **o))[1])
    monkeypatch.setattr(Axes, 'text', lambda axes, x, y, s, **o: (
        seen['texts'].update({(int(y), int(x)): s}), text(axes, x, y, s, **o))[1])
    for side in 'xy':
        real = getattr(Axes, f'set_{side}ticks')
        monkeypatch.setattr(Axes, f'set_{side}ticks', lambda axes, ticks, labels, real=real, side=side, **o: (
            seen.update({side: labels}), real(axes, ticks, labels, **o))[1])
    monkeypatch.setattr(Figure, 'suptitle', lambda figure, s, **o: (seen.update(title=s), title(figure, s, **o))[1])
    return seen


def test_colours_are_shares_of_the_row_and_cells_have_counts(drawn, tmp_path):
    counts = np.array([[3, 1, 0], [0, 123456, 0], [0, 0, 0]])
    draw_confusion(tmp_path / 'c.png', counts, Names(*[['a $1 b', 'long' * 20, 'no\nimage']] * 2))
    assert drawn['shares'].tolist() == [[0.75, 0.25, 0], [0, 1, 0], [0, 0, 0]]
    assert drawn['texts'] == {(0, 0): '3', (0, 1): '1'}  # six digits would not fit
    assert '123,459 of 123,460 images right' in drawn['title'] and 'classes' not in drawn['title']
    assert Image.open(tmp_path / 'c.png').width > 300


def test_of_many_classes_the_title_says_that_some_are_drawn(drawn, tmp_path):
    counts = np.diag(np.arange(40))
    counts[39, 35] = 3
    draw_confusion(tmp_path / 'c.png', counts, Names(*[list(map(str, range(40)))] * 2))
    assert '30 of 40 classes' in drawn['title'] and drawn['shares'].shape == (30, 30)
    assert drawn['texts'][29, 28] == '3' and drawn['shares'][29, 28] == 3 / 42


@pytest.fixture
def captions(monkeypatch):
    """The texts of a sheet, as wide as they may be."""
    seen = []
    monkeypatch.setattr(mistakes_module, 'fit_text', lambda text, font, width: seen.append(text) or text[:9])
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
