"""The page of a report as a file: its numbers, its size, and what it does with names and paths that are no HTML."""
import json
import re
import weakref
from html.parser import HTMLParser

import numpy as np
import pytest
from report.contents import HOSTILE, make_content, pictures_of

from xcit_dense.report.content import Column, Confusion, Row
from xcit_dense.report.page import write_page


class Reader(HTMLParser):
    """The elements of a page with their attributes, and the text and the rows of cells by section."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.rows = [], {}, {}
        self._section, self._in_cell = None, False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == 'section':
            self._section = dict(attrs)['id']
            self.rows[self._section] = []
        elif tag == 'tr':
            self.rows[self._section].append([])
        elif tag in ('td', 'th'):
            self.rows[self._section][-1].append('')
        self._in_cell = tag in ('td', 'th') or self._in_cell and tag != 'table'

    def handle_endtag(self, tag):
        self._in_cell = self._in_cell and tag not in ('tbody', 'thead', 'table')

    def handle_data(self, data):
        self.texts[self._section] = self.texts.get(self._section, '') + data
        if self._in_cell:
            self.rows[self._section][-1][-1] += data.strip('\n')

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


def read(folder, content):
    """Write a `Content` and return its page."""
    write_page(folder / 'report.html', content)
    return Reader((folder / 'report.html').read_text())


def test_the_table_of_classes_has_all_figures(tmp_path):
    content = make_content(4)
    page = read(tmp_path, content)
    heading, *rows = page.rows['classes']
    assert heading == ['class', 'objects', 'AP', 'average recall', 'threshold of the best F1', 'note']
    for row, (name, values, note) in zip(rows, content.classes[1], strict=True):
        figures = ['-'] * 3 if note else [f'{values[key]:.{digits}f}' for key, digits in (
            ('AP', 3), ('AR', 3), ('threshold', 2))]
        assert row == [name, f'{values["objects"]:,}', *figures, note]
    explained = 'Average precision, mean over IoU 0.5 to 0.95.'
    assert explained in page.texts['classes'] and explained in [attrs.get('title') for attrs in page.all('th')]


def test_images_are_named_within_their_folder(tmp_path):
    page = read(tmp_path, make_content(4, 3, 0))
    assert 'Files below /data/val2017/.' in page.texts['images']
    assert [row[0] for row in page.rows['images']] == ['image', *(f'{place:012d}.jpg' for place in range(3))]


def test_metrics_that_are_numbers_are_shown_with_four_digits(tmp_path):
    content = make_content(pictures=0)
    content.metrics = {'mAP': 1 / 3, 'mAP_l': -1., 'aAcc': np.float32(91.5), 'mIoU': 44.25, 'runs': 3,
                       'table': np.zeros((2, 2))}
    page = read(tmp_path, content)
    assert [page.texts['summary'].count(name) for name in ('aAcc', 'runs')] == [2, 1]  # at the top, and in the table
    rows = {row[0]: row[1] for row in page.rows['summary']}
    content.trained = dict(mAP=2 / 3)
    assert ['mAP', '0.3333', '0.6667'] in read(tmp_path, content).rows['summary']
    assert [rows[name] for name in ('mAP', 'aAcc', 'mIoU', 'runs')] == ['0.3333', '91.5', '44.25', '3.0']
    assert 'table' not in rows and rows['mAP_l (no such objects)'] == '-1.0'


def test_the_matrix_its_errors_notes_and_facts(tmp_path):
    content = make_content()
    names, counts = ['cat', 'dog', 'background'], np.array([[7, 2, 1], [0, 5, 0], [3, 0, 0]])
    content.confusion = Confusion(names, counts, 'objects', 'the highest score counts')
    page = read(tmp_path, content)
    *matrix, heading, first, second, third = page.rows['confusion']
    assert matrix == [['true class \\ prediction', *names], ['cat', '7', '2', '1'], ['dog', '', '5', ''],
                      ['background', '3', '', '']]
    assert [first, second, third] == [['background (false positives)', 'cat', '3', '100.0'],
                                      ['cat', 'dog', '2', '20.0'], ['cat', 'background (missed)', '1', '10.0']]
    kinds = [attrs['class'] for attrs in page.all('td') if re.match(r'[cd]\d', attrs.get('class') or '')]
    assert kinds == ['d7', 'c2', 'c1', 'd10', 'c10']  # right or wrong, and tenths of the row
    assert 'The highest score counts.' in page.texts['confusion'] and content.notes[0] in page.texts['summary']
    assert all(value in page.texts['summary'] for fact in content.facts for value in fact)


def test_pixels_are_shown_in_percent_and_of_very_many_classes_the_most_confused(tmp_path):
    content = make_content(task='segmentation')
    counts = np.array([[10**11, 10**9], [0, 0]])
    content.confusion = Confusion(['sky', 'sea'], counts, 'pixels', 'rule')
    page = read(tmp_path, content)
    assert page.rows['confusion'][1] == ['sky', '99.0', '1.0'] and 'percent of the row' in page.texts['confusion']
    assert {attrs['data-n'] for tag, attrs in page.tags if 'data-n' in attrs} == {str(10**11), str(10**9)}
    assert page.rows['confusion'][-1] == ['sky', 'sea', '1,000,000,000', '1.0']
    for classes, has_numbers in ((30, True), (31, False)):  # and the background
        content.confusion = make_content(classes).confusion
        assert any(read(tmp_path, content).rows['confusion'][1][1:]) == has_numbers
    counts = np.diag(np.where(np.arange(1000) < 300, 99, 9))
    counts[990, 2] = 4
    content.confusion = Confusion([f'class {place}' for place in range(1000)], counts, 'images', 'rule')
    page = read(tmp_path, content)
    heading, *rows = page.rows['confusion'][:201]
    assert len(rows) == len(heading) - 1 == 200 and {'class 2', 'class 990'} <= {row[0] for row in rows}
    assert '800 others are only in confusion.csv' in page.texts['confusion']


def test_names_and_paths_are_shown_as_they_are(tmp_path):
    content = make_content(len(HOSTILE) + 1, 3, 0, names=HOSTILE)
    columns, rows = content.images
    content.images = columns, [Row(f'/data/{name}\udcff.png', row.values, name) for name, row in zip(
        HOSTILE, rows, strict=False)]
    content.pictures = pictures_of([f'/data/{HOSTILE[0]}.png'], (32, 32))
    content.facts, content.notes = [(name, name) for name in HOSTILE], list(HOSTILE)
    content.metrics = dict.fromkeys(HOSTILE, 1.)
    page = read(tmp_path, content)
    assert len(page.all('script')) == len(page.all('style')) == 1
    assert not [attrs for _, attrs in page.tags if 'onerror' in attrs] and 'b' not in [tag for tag, _ in page.tags[
        [tag for tag, _ in page.tags].index('table'):]]
    shown = {row[0] for row in page.rows['classes']}
    assert {HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[3], r'two\nlines', r'\u202eleft', HOSTILE[6]} <= shown
    assert page.rows['images'][1][0] == f'{HOSTILE[0]}\\udcff.png'


def test_it_asks_for_nothing_from_outside_and_says_what_is_empty(tmp_path):
    page = read(tmp_path, make_content(12))
    assert re.search(r'Test of a detector: maskrcnn_xcit_s12_p8\s', page.texts[None])
    assert len(page.rows['confusion']) == 1 + 13 + 1 + 20  # of the pairs the most frequent
    asked = [value for _, attrs in page.tags for key, value in attrs.items() if key in ('src', 'href', 'srcset')]
    assert asked and all(value.startswith(('data:image/', '#')) for value in asked)
    policy, = [attrs['content'] for attrs in page.all('meta') if attrs.get('http-equiv') == 'Content-Security-Policy']
    assert policy.startswith("default-src 'none'; img-src data:;")
    content = make_content(images=0, pictures=0)
    content.images = (Column('wrong', 'wrong'), ), []
    page = read(tmp_path, content)
    assert 'no images to show' in page.texts['worst'] and 'no table of images' in page.texts['images']


def test_one_picture_is_in_memory_at_a_time_and_an_error_leaves_no_half_page(tmp_path):
    alive = []

    def draw(error=None):
        for picture in pictures_of([f'{place}.jpg' for place in range(6)], (64, 64)):
            assert sum(array() is not None for array in alive) <= 2  # those of the picture before
            alive.append(weakref.ref(picture.truth))
            yield picture
            del picture
        if error:
            raise error

    content = make_content()
    content.pictures = draw()
    assert len(read(tmp_path, content).all('img')) == 12
    content.pictures = draw(OSError('gone'))
    page, = tmp_path.iterdir()
    before = page.read_bytes()
    with pytest.raises(OSError, match='gone'):
        read(tmp_path, content)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [before]


def test_pictures(tmp_path):
    """Large ones are made smaller, those of classifiers have one side, and the marks and colours are explained."""
    for size, shown in (((1600, 3200), ('640', '320')), ((3200, 800), ('320', '1280'))):
        page = read(tmp_path, make_content(size=size, pictures=1))
        assert all(picture['src'].startswith('data:image/jpeg;base64,/9j/') for picture in page.all('img'))
        assert [(picture['width'], picture['height']) for picture in page.all('img')] == [shown] * 2
    assert 'taken for disc: square' in page.texts['worst']
    content = make_content(3, task='segmentation')
    content.colours = {f'class {place}': (place, 2, 3) for place in range(3)}
    page = read(tmp_path, content)
    assert [attrs['style'] for attrs in page.all('i')] == [
        f'background:rgb({row.name[-1]}, 2, 3)' for row in content.classes[1]]
    assert 'taken for' not in page.texts['worst']
    content = make_content(task='classification')
    content.pictures, content.colours = pictures_of(['a.jpg', 'b.jpg'], (64, 64), has_prediction=False), {}
    page = read(tmp_path, content)
    assert [attrs['alt'] for attrs in page.all('img')] == ['a.jpg', 'b.jpg']
    assert 'ground truth' not in page.texts['worst'] and not page.all('i')


def test_curves_are_those_of_the_work_dir(tmp_path):
    assert 'no log of the training next to' in read(tmp_path, make_content()).texts['curves']
    assert f'No log of a training run (TIME/vis_data/scalars.json) in {tmp_path}' in read(
        tmp_path, make_content(work_dir=tmp_path)).texts['curves']
    log = tmp_path / '20250101_000000/vis_data/scalars.json'
    log.parent.mkdir(parents=True)
    log.write_text('\n'.join(json.dumps(dict(loss=1., step=step)) for step in (1, 2, 3)))
    picture, = read(tmp_path, make_content(work_dir=tmp_path, pictures=0)).all('img')
    assert picture['src'].startswith('data:image/svg+xml;base64,')
