"""The confusion matrix of a report, as a table and as a picture, and its other tables, for all tasks."""
import os
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from report.tested import cells

from xcit_dense.report.content import Column, Confusion, Content, Row, tell_classes, write_classes, write_confusion
from xcit_dense.report.page import draw_confusion

COLUMNS = Column('pixels', 'pixels'), Column('IoU', 'IoU', 2)
ROWS = [Row('car, red', dict(pixels=1234567, IoU=0.125)), Row('no\nclass' + 'x' * 99, dict(pixels=0), 'no pixels')]


def content(rows):
    return Content('segmentation', [], {}, (COLUMNS, rows), ((), []), None)


def test_csv_files_have_all_digits_and_names_and_the_truth_in_rows(tmp_path):
    """Names of folders may have letters that are no Unicode."""
    write_classes(tmp_path / 'c.csv', content(ROWS))
    assert cells(tmp_path / 'c.csv') == [['class', 'pixels', 'IoU', 'note'], ['car, red', '1234567', '0.125', ''],
                                         [ROWS[1].name, '0', '', 'no pixels']]
    row = Row(os.fsdecode(b'caf\xe9'), dict(pixels=1))
    write_classes(tmp_path / 'c.csv', content([row]))
    assert cells(tmp_path / 'c.csv')[1][:2] == [r'caf\udce9', '1']
    counts = np.array([[1, 0, 2], [0, 0, 1], [0, 0, 1]]) * 10**11
    write_confusion(tmp_path / 'm.csv', Confusion([row.name, 'dog, hound', 'newt'], counts, 'images', ''))
    head, first, second, _ = cells(tmp_path / 'm.csv')
    assert head[1:] == [r'caf\udce9', 'dog, hound', 'newt'] and first[1] == '100000000000'
    assert second == ['dog, hound', '0', '0', '100000000000']


def test_the_log_has_lines_of_one_length_and_only_the_worst_of_many_classes():
    head, first, second = tell_classes(content(ROWS)).splitlines()
    assert head.split() == ['class', 'pixels', 'IoU'] and first.split()[-2:] == ['1,234,567', '0.12']
    assert second.startswith('no\\nclass') and second.split()[-2:] == ['0', '-']
    assert len(head) == len(first) == len(second) < 60

    def lines(number):
        return tell_classes(content([Row(str(i), dict(pixels=i, IoU=i)) for i in range(number)])).splitlines()

    assert len(lines(40)) == 41
    head, *rows, last = lines(1000)
    assert [row.split()[0] for row in rows] == [str(i) for i in range(40)]
    assert last == 'and 960 classes more in the CSV file'


@pytest.fixture
def draw(tmp_path, monkeypatch):
    """A function that draws a matrix; returns its shares, the texts of its cells and sides, and the title."""
    figures, save = [], Figure.savefig
    monkeypatch.setattr(Figure, 'savefig', lambda figure, *args, **options: (
        figures.append(figure), save(figure, *args, **options)))

    def draw(counts, names, unit='images'):
        draw_confusion(tmp_path / 'c.png', Confusion([*names], np.array(counts), unit, 'a rule'))
        axes, = figures[-1].axes
        return SimpleNamespace(
            shares=axes.images[0].get_array(), x=[text.get_text() for text in axes.get_xticklabels()],
            y=[text.get_text() for text in axes.get_yticklabels()], title=figures[-1].get_suptitle(),
            labels=(axes.get_xlabel(), axes.get_ylabel()),
            white=[text.get_text() for text in axes.texts if text.get_color() == 'white'],
            texts={text.get_position()[::-1]: text.get_text() for text in axes.texts})

    return draw


def test_colours_are_shares_of_the_row_and_cells_have_counts(draw, tmp_path):
    drawn = draw([[3, 1, 0], [0, 12345, 0], [0, 0, 0]], ('a $1 b', 'long' * 20, 'no\nimage'))
    assert drawn.shares.tolist() == [[0.75, 0.25, 0], [0, 1, 0], [0, 0, 0]]
    assert drawn.texts == {(0, 0): '3', (0, 1): '1', (1, 1): '12345'}
    assert drawn.white == ['3', '12345'] and drawn.labels == ('prediction', 'truth (images)')
    assert drawn.x[::2] == ['a $1 b', 'no\\nimage']
    assert drawn.y[::2] == ['a $1 b (4)', 'no\\nimage (0)'] and len(drawn.y[1]) < 40
    assert drawn.title == '12,348 of 12,349 images correct (100.0%)\nnumbers: images; colours: share of the row'
    assert Image.open(tmp_path / 'c.png').width > 300
    drawn = draw([[6, 1, 1], [0, 2, 0], [5, 0, 0]], ('a', 'b', 'background'), 'objects')
    assert drawn.title.startswith('8 of 10 objects correct (80.0%); 5 false positives\n')


def test_large_counts_are_shown_as_shares(draw):
    """Counts of pixels do not fit into cells. A class may have the name of the background of objects."""
    drawn = draw([[9 * 10**10, 10**10, 10**3], [0, 0, 0], [0, 5, 999_995]], ('a', 'b', 'background'), 'pixels')
    assert drawn.texts == {(0, 0): '90.0', (0, 1): '10.0', (0, 2): '0.0', (2, 1): '0.0', (2, 2): '100.0'}
    assert drawn.y == ['a (100,000,001,000)', 'b (0)', 'background (1,000,000)']
    first, second = drawn.title.splitlines()
    assert first == '90,000,999,995 of 100,001,001,000 pixels correct (90.0%)' and 'percent of the row' in second


def test_names_in_other_alphabets_are_legible(draw, tmp_path, recwarn):
    pictures = []
    for letter in '犬猫':
        draw([[3, 1], [0, 2]], (letter, 'a $1 собака'))
        pictures.append((tmp_path / 'c.png').read_bytes())
    assert pictures[0] != pictures[1]
    assert not [warning for warning in recwarn if 'missing from' in str(warning.message)]


@pytest.mark.parametrize('unit, drawn_classes, words', (('images', 30, '30 of 40'), ('objects', 31, '30 of 39')))
def test_of_many_classes_the_title_says_that_some_are_drawn(unit, drawn_classes, words, draw):
    """The background is always drawn, and does not count as a class that is confused."""
    counts = np.diag(np.arange(40))
    counts[38, 35], counts[39, 5], counts[6, 39] = 3, 900, 900
    drawn = draw(counts, [*map(str, range(39)), 'background'], unit)
    assert f'{words} classes' in drawn.title and drawn.shares.shape == (drawn_classes, ) * 2
    assert ('35' in drawn.x) and drawn.x[-1] == 'background'
    assert drawn.shares[drawn.x.index('38'), drawn.x.index('35')] == 3 / 41
