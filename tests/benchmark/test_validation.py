"""The measurement of validations runs, and compares what it measures."""
import sys

import pytest

from benchmarks import validation


@pytest.mark.slow
def test_both_ways_are_measured(capsys, monkeypatch):
    monkeypatch.setattr(validation, 'MASKS', {'300 masks of 15 to 30 pixels, 1024 x 1024': (3, 60, 80, 2, 5, 30)})
    monkeypatch.setattr(validation, 'EVALUATIONS', {'two images': (2, 60, 80, 9, 2)})
    monkeypatch.setattr(sys, 'argv', ['validation', '--runs', '3'])
    validation.main()
    rows = [line.split(' | ') for line in capsys.readouterr().out.splitlines() if line.startswith('| ')][1:]
    assert [row[0] for row in rows] == ['| 300 masks of 15 to 30 pixels, 1024 x 1024', '| two images']
    assert all(float(row[1]) > 0 and float(row[3]) > 0 for row in rows)
    theirs, ours = map(float, rows[0][4].strip(' |').split(' / '))  # of the whole number, in another process
    assert theirs > 290 > 30 > ours
