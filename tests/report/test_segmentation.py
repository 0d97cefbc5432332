"""The report on a test with mmseg: its figures are those that the metrics print."""
import csv
import re
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.evaluation import IoUMetric
from mmseg.evaluation.metrics import iou_metric
from mmseg.structures import SegDataSample
from PIL import Image
from report.tested import Counting, runner_of

from helpers import exports_segmentation as exports
from helpers.paths import TINY_SEG_CONFIG
from helpers.tools import python, run_tool
from xcit_dense.report.hooks import FILES
from xcit_dense.report.segmentation import PixelCounts, SegmentationRecorder

NAMES = 'sky', 'road', 'car', 'pole', 'sign'
VOID = 255
FIGURES = 'IoU', 'Acc', 'Precision', 'Fscore'  # the columns of the table of classes that mmseg's metrics print too


def sample(truth=None, prediction=None, path=None):
    maps = dict(gt_sem_seg=truth, pred_sem_seg=prediction)
    return SegDataSample(metainfo=dict(img_path=path), **{
        name: PixelData(data=torch.as_tensor(labels)[None]) for name, labels in maps.items() if labels is not None})


def maps(classes=5):
    """Ground truth with unlabelled pixels and all classes but the last, and predictions that are often right."""
    noise = np.random.default_rng(0)
    truth = noise.integers(0, classes - 1, (6, 40, 50))
    prediction = np.where(noise.random(truth.shape) < 0.7, truth, noise.integers(0, classes - 1, truth.shape))
    truth[:, :3] = VOID
    return truth, prediction


def evaluated(samples, metrics, names=NAMES, cfg=None):
    """Evaluate samples; return metrics, content and its rows by name, warnings, and the tables that mmseg printed."""
    printed, meta = [], dict(classes=names, palette=[(50 * i, 0, 0) for i in range(len(names))])
    runner = runner_of('mmseg', samples, metrics, cfg=cfg, metainfo=meta)
    recorder, evaluator = SegmentationRecorder(runner), runner.test_loop.evaluator
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(iou_metric, 'print_log', lambda text, *_, **__: printed.append(text))
        for i in range(0, len(samples), 2):
            evaluator.process(samples[i:i + 2])
            recorder.see(None, samples[i:i + 2])
        metrics = evaluator.evaluate(len(samples))
        content = recorder.content(metrics)
    return SimpleNamespace(metrics=metrics, content=content, said=runner.said,
                           rows=content and {row.name: row for row in content.classes[1]},
                           tables=[_parse(text) for text in printed if '|' in text])


def _parse(table):
    """Return the numbers of a table that mmseg prints, by class and column."""
    head, *lines = [[cell.strip() for cell in line.strip('|').split('|')] for line in table.splitlines() if '|' in line]
    return {name: {column: None if text == 'nan' else float(text) for column, text in zip(head[1:], texts, strict=True)}
            for name, *texts in lines}


def assert_equal_to(table, rows):
    for name, line in table.items():
        wanted = {column: value for column, value in line.items() if column in FIGURES}
        assert wanted and {column: rows[name].values[column] for column in wanted} == wanted


@pytest.mark.parametrize('options', (
    dict(iou_metrics=['mIoU', 'mDice', 'mFscore']), dict(iou_metrics=['mFscore'], nan_to_num=-1),
    dict(nan_to_num=0), dict(ignore_index=1)), ids=str)
def test_figures_are_those_that_mmseg_prints(options):
    tested = evaluated([*map(sample, *maps())], [IoUMetric(**options)])
    table, = tested.tables
    assert_equal_to(table, tested.rows)
    assert [column.key for column in tested.content.classes[0]] == ['images', 'pixels', *FIGURES]
    assert tested.content.metrics == tested.metrics


def test_figures_that_no_metric_prints_are_the_same_areas():
    """Precision and F1 next to mIoU are what mFscore would print; also without a metric of figures for classes."""
    samples = [*map(sample, *maps())]
    both, *others = (evaluated(samples, metrics) for metrics in (
        [IoUMetric(iou_metrics=['mIoU', 'mFscore'])], [IoUMetric()], [Counting()],
        [Counting(), IoUMetric(prefix='all'), IoUMetric(ignore_index=0, prefix='some')]))  # the first of several
    wanted = {name: {key: line[key] for key in FIGURES} for name, line in both.tables[0].items()}
    for tested in others:
        assert_equal_to(wanted, tested.rows)
    assert others[1].metrics == {'own/count': len(samples)}


def test_figures_of_hand_made_maps():
    """Counted by hand: a pixel that is unlabelled does not count; a class of an image is in its truth or prediction."""
    tested = evaluated([sample([[VOID, VOID]], [[0, 1]]), sample([[0, 0, 1, VOID]], [[0, 1, 1, 1]]),
                  sample([[2, 2, 0, 0, 0]], [[2, 1, 0, 0, 1]], 'b.png')], [IoUMetric()], names=NAMES[:3])
    assert {name: row.values for name, row in tested.rows.items()} == dict(
        sky=dict(IoU=60., Acc=60., Precision=100., Fscore=75., images=2, pixels=5),
        road=dict(IoU=25., Acc=100., Precision=25., Fscore=40., images=1, pixels=1),
        car=dict(IoU=50., Acc=50., Precision=100., Fscore=66.67, images=1, pixels=2))
    assert [row.name for row in tested.content.classes[1]] == ['road', 'car', 'sky']
    assert tested.content.confusion.counts.tolist() == [[3, 2, 0], [0, 1, 0], [0, 1, 1]]
    worst, second, last = tested.content.images[1]
    assert worst.name == 'b.png' and worst.values == dict(mIoU=pytest.approx(100 * (2 / 3 + 1 / 2) / 3), wrong=40.)
    assert second.name == 'image 1' and second.values == dict(mIoU=50., wrong=pytest.approx(100 / 3))
    assert (last.name, last.values, last.note) == ('image 0', {}, 'all pixels are ignored')


def test_classes_without_pixels_are_last_and_named():
    truth, prediction = maps(classes=4)  # neither has pole and sign
    prediction[0, 5, 5] = 3
    tested = evaluated([*map(sample, truth, prediction)], [IoUMetric()])
    *_, pole, sign = tested.content.classes[1]
    assert pole.values['IoU'] == 0 and pole.note == 'no pixels in the ground truth; predicted in 1 pixel'
    assert sign.values['IoU'] is None and sign.note == 'no pixels in the ground truth; predicted in 0 pixels'
    assert tested.content.notes == ['No pixels in the ground truth: pole, sign. They are not in the means, except '
                                    'pole, with the IoU of the table.']
    ious = [row.values['IoU'] for row in tested.content.classes[1] if row.values['IoU'] is not None]
    assert tested.metrics['mIoU'] == pytest.approx(np.mean(ious), abs=0.01) and len(ious) == 4
    tested = evaluated([*map(sample, truth, prediction)], [IoUMetric(nan_to_num=0)])
    assert tested.content.notes == ['No pixels in the ground truth: pole, sign. They are not in the means, except '
                                    'pole, sign, with the IoU of the table.']
    assert tested.rows['sign'].values == dict(IoU=0, Acc=0, Precision=0, Fscore=0, images=0, pixels=0)


@pytest.mark.parametrize('samples, names', (
    ([sample([[0]])], NAMES), ([sample(None, [[0]])], NAMES), ([sample([[0]], [[0]])], ()), ([], NAMES)))
def test_without_label_maps_there_is_no_report_but_a_word(samples, names):
    tested = evaluated(samples, [Counting()], names)
    warning, = tested.said
    assert tested.content is None and warning.startswith('no report written: it needs names of classes, and')


def test_facts_name_what_was_tested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'run/20250101/vis_data').mkdir(parents=True)
    (tmp_path / 'run/20250101/vis_data/scalars.json').write_text('')
    cfg = dict(load_from=str(tmp_path / 'run/iter_4.pth'), model=dict(type='SegTTAModel', module=dict(type='A')))
    content = evaluated([sample([[0, 5, VOID]], [[0, 1, 1]])], [IoUMetric()], cfg=cfg).content
    facts = dict(content.facts)
    assert (facts['checkpoint'], facts['config']) == ('run/iter_4.pth', 'made in memory')
    assert facts['test data'] == '1 image of 5 classes'
    assert facts['labelled pixels'] == '2; those with the label 255 do not count' and 'torch' in facts['versions']
    assert 'merged' in facts['test-time augmentation'] and content.work_dir == str(tmp_path / 'run')
    content = evaluated([sample([[0]], [[0]])], [IoUMetric()], cfg=dict(load_from='elsewhere/iter_4.pth')).content
    assert content.work_dir is None and 'test-time augmentation' not in dict(content.facts)
    confusion = evaluated([sample([[0, 1]], [[1, 1]])], [IoUMetric(ignore_index=9)], NAMES[:2]).content.confusion
    assert confusion.rule.endswith('Pixels with the label 9 do not count.')
    assert (confusion.names, confusion.unit) == (['sky', 'road'], 'pixels')
    confusion = evaluated([sample([[0, 5]], [[1, 1]])], [IoUMetric()], NAMES[:2]).content.confusion
    assert confusion.names == ['sky', 'road', 'no class']  # a label that is no class
    assert confusion.counts.tolist() == [[0, 1, 0], [0, 0, 0], [0, 1, 0]]


def test_pictures_are_of_the_worst_images_and_mark_what_is_ignored(tmp_path):
    samples = []
    for number in range(30):
        cv2.imwrite(str(tmp_path / f'{number}.png'), np.full((200, 250, 3), 128, np.uint8))
        truth, prediction = np.zeros((200, 250), int), np.zeros((200, 250), int)
        prediction[:, :5 * number] = 1
        truth[:45] = VOID
        samples.append(sample(truth, prediction, str(tmp_path / f'{number}.png')))
    (tmp_path / '28.png').unlink()
    tested = evaluated(samples, [IoUMetric()], NAMES[:2])
    first, *others = tested.content.pictures
    assert [picture.path for picture in (first, *others)] == [
        row.name for row in tested.content.images[1][:24] if not row.name.endswith('28.png')]
    assert len(others) == 22 and [str(tmp_path / '28.png') in line for line in tested.said] == [True]
    assert first.caption == 'mIoU 21.00%, 58.0% of the pixels wrong'
    for side in (first.truth, first.prediction):
        assert (side[:45] == 32).mean() > 0.8  # dark, but for the names of classes
    differs = (first.prediction[45:] != first.truth[45:]).any(2)
    assert differs[:, :145].mean() > 0.8 and differs[:, 145:].mean() < 0.2


def counts_of(images, kept=24, places=None):
    """Count pairs of ground truth and prediction, which are lists of rows, in some places of the data set."""
    counts = PixelCounts(3, VOID, kept)
    for place in places or range(len(images)):
        counts.add(place, f'{place}.png', *map(torch.tensor, images[place]))
    return counts


def test_labels_that_are_no_class_are_wrong():
    """As mmseg counts them: in the union of the class that was predicted there."""
    counts = counts_of([([[7, 7, 0, 0]], [[7, 0, 0, -1]])])
    assert counts.confusion[3].tolist() == [1, 0, 0, 1] and counts.confusion[0].tolist() == [1, 0, 0, 1]
    assert counts.images[0][1].values == dict(mIoU=pytest.approx(100 / 3), wrong=75)


def test_label_maps_of_the_worst_are_kept_whole():
    truth, prediction = torch.randint(0, 1000, (2, 31, 17), generator=torch.Generator().manual_seed(0))
    truth[:9] = 65535
    counts = PixelCounts(1000, 65535, 1)
    counts.add(0, 'a.png', truth, prediction)
    (_, _, *images), = counts.worst
    for compressed, wanted in zip(images, (truth, prediction), strict=True):
        labels = cv2.imdecode(np.frombuffer(compressed, np.uint8), cv2.IMREAD_UNCHANGED)
        assert (labels == np.where(truth == 65535, 1001, wanted)).all() and labels.shape == (31, 17)


def test_processes_are_joined():
    """The counts are exact beyond the digits of float32."""
    noise = np.random.default_rng(0)
    images = [(noise.integers(0, 3, (4, 6)).tolist(), noise.integers(0, 2, (4, 6)).tolist()) for _ in range(13)]
    whole, first, second = (counts_of(images, 5, range(*part)) for part in ((13, ), (0, 13, 2), (1, 13, 2)))
    first.confusion[0, 0] += 10**11
    whole.confusion[0, 0] += 10**11
    first.join(second)
    assert (first.confusion == whole.confusion).all() and (first.images_of == whole.images_of).all()
    assert sorted(first.images, key=lambda image: image[0]) == whole.images and first.worst == whole.worst


def table_of(folder):
    with open(folder / 'per_class.csv', newline='') as file:
        return {row['class']: row for row in csv.DictReader(file)}


def test_the_table_is_that_of_the_log(tmp_path):
    """Of images of 48 x 40 pixels, of which 3 rows have no label; and of as many training images, evenly spaced."""
    run = tmp_path / 'run'
    for part, count in (('training', 5), ('validation', 3)):
        data = exports.pairs(tmp_path / 'data', f'images/{part}', f'annotations/{part}', exports.names(count), count,
                             change=lambda labels: np.where(labels == exports.VOID, VOID, labels).astype(np.uint8))
    (data / 'classes.txt').write_text('\n'.join(exports.CAMVID))
    run_tool('train.py', TINY_SEG_CONFIG, '--data-root', data, '--work-dir', run, '--cfg-options',
             'train_cfg.max_iters=1', 'train_cfg.val_interval=1')
    for number in (1, 3):
        (data / f'images/training/s00{number}.jpg').write_text('is not read')
    done = run_tool('test.py', TINY_SEG_CONFIG, run, '--data-root', data, '--work-dir', tmp_path, '--report',
                    '--cfg-options', 'test_evaluator.iou_metrics=[mIoU,mDice,mFscore]')
    table = table_of(tmp_path / 'report')
    assert sum(int(row['pixels']) for row in table.values()) == 3 * 48 * 37
    printed, _, more = done.stdout.partition('the same on 3 training images:')
    assert 'mIoU' in more and 'no metrics on training' not in more
    head, *lines = [re.findall(r'[\w.]+', line) for line in printed.splitlines() if re.match(r'\| ', line)]
    assert {name for name, *_ in lines} == {*table} == {*exports.CAMVID}
    for name, *figures in lines:
        wanted = {key: value for key, value in zip(head[1:], figures, strict=True) if key in FIGURES}
        assert wanted == {key: table[name][key] or 'nan' for key in wanted} and len(wanted) == 4
    metrics, ours = done.stdout.index('mIoU: '), done.stdout.index('per class, worst first')
    assert metrics < ours and f'wrote {", ".join(FILES)} into {tmp_path}/report' in done.stdout
    assert Image.open(tmp_path / 'report/confusion_matrix.png').width > 300
    page = (tmp_path / 'report/report.html').read_text()
    assert 'From the log in' in page and str(run) in page  # the curves of its training


#: What a metric of segmentation does: it keeps small tensors of every image, between label maps that are freed.
MANY = '''
from pathlib import Path
import torch
from xcit_dense._utils.machine import kib
from xcit_dense.report.hooks import ReportHook

hook, kept, status = ReportHook(''), [], Path('/proc/self/status')
for place in range(300):
    maps = [torch.ones(480, 640, dtype=torch.long) for _ in range(3)]
    kept.append([torch.ones(150) for _ in range(4)])
    del maps
    hook.after_test_iter(None, place)
    if place == 99:
        before = kib(status, 'VmRSS')
print((kib(status, 'VmRSS') - before) / 2**20)
'''


@pytest.mark.integration
def test_memory_between_the_results_of_a_metric_is_returned():
    """Otherwise these 200 images need 480 to 1,400 MiB."""
    assert float(python(MANY).splitlines()[-1]) < 100


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
    assert 'training images' not in first.stdout
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
