"""The confusion matrix of a report, as a table and as a picture, and its other tables, for all tasks."""
import csv
import os

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from xcit_dense.report.content import (
    Column,
    Confusion,
    Content,
    Row,
    shown,
    tell_classes,
    write_classes,
    write_confusion,
)
from xcit_dense.report.page import draw_confusion, most_confused

RULE = 'an image counts as the class of the highest score'


def confusion(counts, names, unit='images', rule=RULE):
    return Confusion([*names], np.array(counts), unit, rule)


def test_the_table_has_truth_in_rows(tmp_path):
    counts = np.array([[1, 0, 2], [0, 0, 1], [0, 0, 1]])
    write_confusion(tmp_path / 'c.csv', confusion(counts * 10**11, ('cat', 'dog, hound', 'newt')))
    with open(tmp_path / 'c.csv', newline='') as file:
        head, first, second, _ = csv.reader(file)
    assert head[1:] == ['cat', 'dog, hound', 'newt']
    assert second == ['dog, hound', '0', '0', '100000000000'] and first[1] == '100000000000'


def test_the_most_confused_of_many_classes():
    counts = np.diag(np.full(9, 50))
    counts[7, 2], counts[2, 7], counts[8, 1], counts[0, 3] = 4, 4, 7, 1
    assert most_confused(counts, 2).tolist() == [2, 7]  # both ways: 8, more than 7
    assert most_confused(counts, 4).tolist() == [1, 2, 7, 8]
    assert most_confused(counts, 7).tolist() == [0, 1, 2, 3, 4, 7, 8]
    assert most_confused(counts, 9).tolist() == list(range(9))


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn with matplotlib: the matrix, the texts in its cells, labels and title."""
    seen = dict(texts={})
    show, text = Axes.imshow, Axes.text
    monkeypatch.setattr(Axes, 'imshow', lambda axes, x, **o: (seen.update(shares=x), show(axes, x, **o))[1])
    monkeypatch.setattr(Axes, 'text', lambda axes, x, y, s, **o: (
        seen['texts'].update({(int(y), int(x)): s}), text(axes, x, y, s, **o))[1])
    for side in 'xy':
        real = getattr(Axes, f'set_{side}ticks')
        monkeypatch.setattr(Axes, f'set_{side}ticks', lambda axes, ticks, labels, real=real, side=side, **o: (
            seen.update({side: labels}), real(axes, ticks, labels, **o))[1])
    title = Figure.suptitle
    monkeypatch.setattr(Figure, 'suptitle', lambda figure, s, **o: (seen.update(suptitle=s), title(figure, s, **o))[1])
    return seen


def test_colours_are_shares_of_the_row_and_cells_have_counts(drawn, tmp_path):
    names = 'a $1 b', 'long' * 20, 'no\nimage'
    draw_confusion(tmp_path / 'c.png', confusion([[3, 1, 0], [0, 12345, 0], [0, 0, 0]], names))
    assert drawn['shares'].tolist() == [[0.75, 0.25, 0], [0, 1, 0], [0, 0, 0]]
    assert drawn['texts'] == {(0, 0): '3', (0, 1): '1', (1, 1): '12345'}
    assert drawn['x'][::2] == ['a $1 b', 'no\\nimage']
    assert drawn['y'][::2] == ['a $1 b (4)', 'no\\nimage (0)'] and len(drawn['y'][1]) < 40
    assert drawn['suptitle'] == '12,348 of 12,349 images correct (100.0%)\nnumbers: images; colours: share of the row'
    assert Image.open(tmp_path / 'c.png').width > 300


def test_large_counts_are_shown_as_shares(drawn, tmp_path):
    """Counts of pixels do not fit into cells. A class may have the name of the background of objects."""
    counts = [[9 * 10**10, 10**10, 10**3], [0, 0, 0], [0, 5, 999_995]]
    draw_confusion(tmp_path / 'c.png', confusion(counts, ('a', 'b', 'background'), unit='pixels'))
    assert drawn['texts'] == {(0, 0): '90.0', (0, 1): '10.0', (0, 2): '0.0', (2, 1): '0.0', (2, 2): '100.0'}
    assert drawn['y'] == ['a (100,000,001,000)', 'b (0)', 'background (1,000,000)']
    first, second = drawn['suptitle'].splitlines()
    assert first == '90,000,999,995 of 100,001,001,000 pixels correct (90.0%)' and 'percent of the row' in second


def test_names_in_other_alphabets_are_legible(tmp_path, recwarn):
    """With a font of the system, otherwise as codes."""
    for place, letter in enumerate('犬猫'):
        draw_confusion(tmp_path / f'{place}.png', confusion([[3, 1], [0, 2]], (letter, 'a $1 собака')))
    assert (tmp_path / '0.png').read_bytes() != (tmp_path / '1.png').read_bytes()
    assert not [warning for warning in recwarn if 'missing from' in str(warning.message)]


def test_the_background_counts_as_no_object(drawn, tmp_path):
    counts = [[6, 1, 1], [0, 2, 0], [5, 0, 0]]
    draw_confusion(tmp_path / 'c.png', confusion(counts, ('a', 'b', 'background'), unit='objects'))
    assert drawn['suptitle'].startswith('8 of 10 objects correct (80.0%); 5 false positives\n')


@pytest.mark.parametrize('unit, drawn_classes, words', (('images', 30, '30 of 40'), ('objects', 31, '30 of 39')))
def test_of_many_classes_the_title_says_that_some_are_drawn(unit, drawn_classes, words, drawn, tmp_path):
    """The background is always drawn, and does not count as a class that is confused."""
    counts = np.diag(np.arange(40))
    counts[38, 35], counts[39, 5], counts[6, 39] = 3, 900, 900
    names = [*map(str, range(39)), 'background']
    draw_confusion(tmp_path / 'c.png', confusion(counts, names, unit=unit))
    assert f'{words} classes' in drawn['suptitle'] and drawn['shares'].shape == (drawn_classes, ) * 2
    assert ('35' in drawn['x']) and drawn['x'][-1] == 'background'
    assert drawn['shares'][drawn['x'].index('38'), drawn['x'].index('35')] == 3 / 41


COLUMNS = Column('pixels', 'pixels'), Column('IoU', 'IoU', 2)


def content(rows):
    return Content('segmentation', [], {}, (COLUMNS, rows), ((), []), None)


ROWS = [Row('car, red', dict(pixels=1234567, IoU=0.125)), Row('no\nclass' + 'x' * 99, dict(pixels=0), 'no pixels')]


def test_the_csv_file_has_all_digits_and_names(tmp_path):
    write_classes(tmp_path / 'c.csv', content(ROWS))
    with open(tmp_path / 'c.csv', newline='') as file:
        assert list(csv.reader(file)) == [['class', 'pixels', 'IoU', 'note'], ['car, red', '1234567', '0.125', ''],
                                          [ROWS[1].name, '0', '', 'no pixels']]


def test_names_of_folders_may_have_letters_that_are_no_unicode(tmp_path):
    row = Row(os.fsdecode(b'caf\xe9'), dict(pixels=1))
    write_classes(tmp_path / 'c.csv', content([row]))
    write_confusion(tmp_path / 'm.csv', Confusion([row.name], np.ones((1, 1), int), 'images', ''))
    assert all(r'caf\udce9,1' in (tmp_path / name).read_text('utf-8') for name in ('c.csv', 'm.csv'))


def test_the_log_has_lines_of_one_length():
    head, first, second = tell_classes(content(ROWS)).splitlines()
    assert head.split() == ['class', 'pixels', 'IoU'] and first.split()[-2:] == ['1,234,567', '0.12']
    assert second.startswith('no\\nclass') and second.split()[-2:] == ['0', '-']
    assert len(head) == len(first) == len(second) < 60


def test_the_log_has_only_the_worst_of_many_classes():
    def lines(number):
        return tell_classes(content([Row(str(i), dict(pixels=i, IoU=i)) for i in range(number)])).splitlines()

    assert len(lines(40)) == 41
    head, *rows, last = lines(1000)
    assert [row.split()[0] for row in rows] == [str(i) for i in range(40)]
    assert last == 'and 960 classes more in the CSV file'


def test_numbers_and_texts_as_a_table_shows_them():
    assert [shown(value, COLUMNS[0]) for value in (None, 12345, 'cat')] == ['-', '12,345', 'cat']
    assert shown(2 / 3, COLUMNS[1]) == '0.67'
