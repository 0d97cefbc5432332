"""The table of classes, as CSV and in the log."""
import csv
import os

import numpy as np

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
    write_confusion(tmp_path / 'm.csv', Confusion([row.name], [row.name], np.ones((1, 1), int), 'images', ''))
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
    assert [row.split()[0] for row in rows] == [str(i) for i in range(20)]
    assert last == 'and 980 classes more in the CSV file'


def test_numbers_and_texts_as_a_table_shows_them():
    assert [shown(value, COLUMNS[0]) for value in (None, 12345, 'cat')] == ['-', '12,345', 'cat']
    assert shown(2 / 3, COLUMNS[1]) == '0.67'
