"""The report on segmentation through the tool: what the log prints, in one process and in several."""
import csv
import re

import pytest
from PIL import Image

from helpers.paths import TINY_SEG_CONFIG
from helpers.streets import CLASSES, make_streets
from helpers.tools import run_tool
from xcit_dense.report.hook import FILES


def table_of(folder):
    with open(folder / 'per_class.csv', newline='') as file:
        return {row['class']: row for row in csv.DictReader(file)}


def test_the_table_is_that_of_the_log(tmp_path):
    """Of data similar to CamVid, whose unlabelled pixels do not count."""
    data, run = make_streets(tmp_path / 'data', 1, 3, (96, 64)), tmp_path / 'run'
    run_tool('train.py', TINY_SEG_CONFIG, '--data-root', data, '--work-dir', run, '--cfg-options',
             'train_cfg.max_iters=1', 'train_cfg.val_interval=1')
    done = run_tool('test.py', TINY_SEG_CONFIG, run, '--data-root', data, '--work-dir', tmp_path, '--report',
                    '--cfg-options', 'test_evaluator.iou_metrics=[mIoU,mDice,mFscore]')
    table = table_of(tmp_path / 'report')
    assert set(table) == set(CLASSES)
    pixels = sum(int(row['pixels']) for row in table.values())
    assert 3 * 96 * 64 - 3 * 3 * 600 <= pixels < 3 * 96 * 64
    head, *lines = [re.findall(r'[\w.]+', line) for line in done.stdout.splitlines() if re.match(r'\| ', line)]
    assert len(lines) == len(CLASSES)
    for name, *figures in lines:
        assert [table[name][key] or 'nan' for key in head[1:]] == figures
    metrics, ours = done.stdout.index('mIoU: '), done.stdout.index('per class, worst first')
    assert metrics < ours and f'wrote {", ".join(FILES)} into {tmp_path}/report' in done.stdout
    assert Image.open(tmp_path / 'report/confusion_matrix.png').width > 300
    page = (tmp_path / 'report/report.html').read_text()
    assert 'From the log in' in page and str(run) in page  # the curves of its training


@pytest.fixture(scope='module')
def alone(trained_segmentor, demo_data, tmp_path_factory):
    """The report on a test in one process."""
    folder = tmp_path_factory.mktemp('alone')
    run_tool('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', demo_data, '--work-dir', folder,
             '--report', folder / 'report')
    return folder / 'report'


def test_several_processes_report_each_image_once(alone, trained_segmentor, demo_data, two_processes, tmp_path):
    """The sampler gives one of three twice."""
    first, second = two_processes.run_tool('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', demo_data,
                                           '--work-dir', tmp_path, '--report', tmp_path / 'together')
    assert 'per class, worst first' in first.stdout and 'worst first' not in second.stdout
    assert (tmp_path / 'together/confusion.csv').read_text() == (alone / 'confusion.csv').read_text()
    assert table_of(tmp_path / 'together') == table_of(alone)


def test_an_exported_file_has_the_same_report(alone, exported_segmentor, demo_data, tmp_path):
    run_tool('test.py', TINY_SEG_CONFIG, exported_segmentor, '--data-root', demo_data, '--work-dir', tmp_path,
             '--report', tmp_path / 'onnx')
    wanted = table_of(alone)
    for name, row in table_of(tmp_path / 'onnx').items():
        assert row['pixels'] == wanted[name]['pixels']
        assert float(row['IoU'] or 0) == pytest.approx(float(wanted[name]['IoU'] or 0), abs=0.1)
    assert str(exported_segmentor) in (tmp_path / 'onnx/report.html').read_text()
