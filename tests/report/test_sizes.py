"""Dense models tested at several image sizes: each as that size alone, the files, the page, and what is rejected."""
import json
import shutil
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import pytest
import torch
from mmengine.config import Config

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense import XCiT
from xcit_dense.config.loading import load_config
from xcit_dense.report import sizes
from xcit_dense.report.sizes import FILES, SizesHook, _set_window, configs_by_size

pytestmark = pytest.mark.filterwarnings('ignore')
MEMORY = 'peak memory of the process (GiB)'


def rows_of(work_dir):
    """Return the rows of a test, whose time and memory are possible."""
    rows = json.loads((work_dir / FILES[0]).read_text())['sizes']
    for row in rows:
        assert 0 < row['ms/image'] < 1000 * row['seconds'] and 0.1 < row[MEMORY] < 100
    return rows


def assert_each_is_as_alone(args, sizes, work_dir, monkeypatch):
    """The same metrics, to the last digit, of the same inputs of the backbone; return the rows."""
    seen, forward = [], XCiT.forward
    monkeypatch.setattr(XCiT, 'forward', lambda model, x: (
        seen.append((x.shape, x.sum().item())), forward(model, x))[1])
    done = run_tool('test.py', *args, '--work-dir', work_dir / 'all', '--sizes', *sizes)
    table, rows = done.stdout.strip().splitlines()[-len(sizes) - 1:], rows_of(work_dir / 'all')
    assert 'ms/image' in table[0] and MEMORY in table[0]
    assert [int(line.split()[0]) for line in table[1:]] == [row['size'] for row in rows] == list(sizes)
    assert cv2.imread(str(work_dir / 'all' / FILES[1])).std() > 5
    together, alone = seen.copy(), []
    for row in rows:
        seen.clear()
        run_tool('test.py', *args, '--work-dir', work_dir / str(row['size']), '--image-size', row['size'])
        file, = work_dir.glob(f'{row["size"]}/*/*.json')
        metrics = {key: value for key, value in json.loads(file.read_text()).items() if 'time' not in key}
        assert metrics == {key: row[key] for key in row.keys() - {'size', 'seconds', 'ms/image', MEMORY}}
        alone += seen
    assert len(together) > len(alone) and together[-len(alone):] == alone  # after those of the trial
    return rows


def test_each_size_of_a_segmentor_is_as_alone(trained_segmentor, demo_data, tmp_path, monkeypatch):
    """With a window, which depends on the image size."""
    (tmp_path / 'slide.py').write_text(f"_base_ = '{TINY_SEG_CONFIG}'\nmodel = dict(test_cfg=dict(mode='slide', "
                                       'crop_size=(64, 64), stride=(64, 64)))\n')
    large, small = assert_each_is_as_alone((tmp_path / 'slide.py', trained_segmentor[0], '--data-root', demo_data),
                                           (96, 48), tmp_path, monkeypatch)
    assert large['mIoU'] != small['mIoU']


@pytest.mark.slow
@pytest.mark.parametrize('options', (('--tta', ), ('--dtype', 'bfloat16', '--batch-size', 2)))
def test_each_size_of_a_detector_is_as_alone(options, trained, demo_data, tmp_path, monkeypatch):
    assert_each_is_as_alone((TINY_CONFIG, trained[0], '--data-root', demo_data, *options), (48, 96), tmp_path,
                            monkeypatch)


def test_the_report_has_all_sizes_and_is_of_the_last(trained, tmp_path):
    """In the work dir of the training, from another folder."""
    shutil.copytree(trained[0], tmp_path / 'run')
    done = run_tool('test.py', 'run', '--sizes', 64, 96, '--report', cwd=tmp_path)
    page = (tmp_path / 'run/report/report.html').read_text()
    section = page[page.index('id="sizes"'):page.index('id="classes"')]
    assert 'test at 96 pixels' in section and 'image/svg+xml' in section
    assert [f'<th scope="row">{row["size"]}</th>' in section and f'{row["coco/bbox_mAP"]:.4f}' in section
            and f'{row["ms/image"]:.1f}' in section for row in rows_of(tmp_path / 'run')] == [True, True]
    assert done.stdout.index('--sizes: 64 pixels, size 1 of 2') < done.stdout.index('--sizes: 96 pixels, size 2 of 2')
    assert done.stdout.count('per class, worst first') == 1 and 'training images' not in done.stdout


@pytest.mark.slow
def test_two_processes_write_one_table(two_processes, trained_segmentor, demo_data, tmp_path):
    args = TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', demo_data, '--work-dir', tmp_path, '--sizes', 64, 48
    both = two_processes.run_tool('test.py', *args, '--report')
    assert [done.stdout.count('accuracy by image size') for done in both] == [1, 0]
    assert [row['size'] for row in rows_of(tmp_path)] == [64, 48] and (tmp_path / 'report/report.html').exists()
    (tmp_path / FILES[0]).write_text('mine')
    assert all(done.returncode == 1 and FILES[0] in done.message for done in two_processes.run_tool(
        'test.py', *args, check=False))


@pytest.mark.slow
def test_an_exported_file(exported_segmentor, demo_data, tmp_path):
    """One of a fixed size stops before the first test."""
    args = '--data-root', demo_data, '--work-dir', tmp_path, '--sizes', 64, 96
    run_tool('test.py', TINY_SEG_CONFIG, exported_segmentor, *args)
    assert [row['size'] for row in rows_of(tmp_path)] == [64, 96]
    model = onnx.load(exported_segmentor)
    for dim in model.graph.input[0].type.tensor_type.shape.dim[1:3]:
        dim.dim_value = 80
    onnx.save(model, tmp_path / 'fixed.onnx')
    done = run_tool('test.py', TINY_SEG_CONFIG, tmp_path / 'fixed.onnx', *args, check=False)
    assert done.returncode == 1 and '--sizes 64' in done.message and len(done.message.splitlines()) == 1
    assert 'Iter(test)' not in done.stdout


@pytest.mark.parametrize('options, words', (
    (('--sizes', 96, 8), ('--sizes 8', 'at least 16')),
    (('--sizes', 96, 96), ('--sizes', '96 96')), (('--sizes', 64, '--image-size', 64), ('--sizes', '--image-size')),
    (('--sizes', 64, '--at-least', 'mIoU=1'), ('--sizes', '--at-least')),
    (('--sizes', 64, '--crop-ratio', 0.9), ('--sizes 64', '--crop-ratio', 'classifiers')),
    (('--sizes', 64, '--tta', '--cfg-options', 'tta_pipeline=[1]'), ('--sizes', 'tta_pipeline')),
    (('--sizes', 96, 64, '--cfg-options', 'test_dataloader.dataset.pipeline.1.scale=(80,80)'),
     ('--sizes 96', 'test_dataloader', '--cfg-options'))))
def test_what_cannot_be_is_one_line_before_the_first_test(options, words, trained_segmentor, demo_data, tmp_path):
    done = run_tool('test.py', TINY_SEG_CONFIG, trained_segmentor[0], '--data-root', demo_data, '--work-dir', tmp_path,
                    *options, check=False)
    assert done.returncode == 1 and all(word in done.message for word in words), done.message
    assert 'Iter(test)' not in done.stdout and len(done.message.splitlines()) == 1


def test_each_size_has_a_config_without_workers_that_stay():
    cfg = load_config(TINY_SEG_CONFIG)
    cfg.test_dataloader.persistent_workers = True
    found = configs_by_size(cfg, (64, 16))
    assert [each.test_dataloader.persistent_workers for each in (*found.values(), cfg)] == [False, False, True]
    model, window = torch.nn.Module(), dict(mode='slide', crop_size=(7, 9))
    for wanted in (dict(test_cfg=window), dict(module=dict(test_cfg=window))):  # with augmentation
        model.test_cfg = dict(mode='slide')
        _set_window(model, Config(dict(model=wanted)))
        assert model.test_cfg == window


def test_what_is_shown_of_metrics_and_time(monkeypatch):
    """A detector that finds nothing has no metrics; those of users have any name."""
    hook = SizesHook((224, 160, 320))
    hook.memory = MEMORY
    assert hook.time_left() == ''
    for size, metrics in ((160, {}), (224, {'coco/bbox_mAP': 0.25, 'coco/bbox_mAP_s': -1.})):
        hook.rows[size] = {'size': size, **metrics, 'seconds': 600., 'ms/image': 9., MEMORY: None}
    # 1,200 s for 160^2 + 224^2 pixels
    assert hook.time_left() == ', about 27 minutes left'
    assert [line.split() for line in hook.table().splitlines()[1:]] == [
        ['224', '0.2500', '600.0', '9.0', '-'], ['160', '-', '600.0', '9.0', '-']]
    accuracy, _ = hook.content()[-1].axes  # and no plot of memory
    line, = accuracy.lines
    assert line.get_xdata().tolist() == [160, 224] and np.array_equal(line.get_ydata(), [np.nan, 25.], equal_nan=True)
    hook.size, hook._start, hook._on_gpu, hook._write = 224, 0., False, lambda runner: None
    hook._busy = [(9., 2), (0.1, 2), (0.3, 4)]  # seconds and images of batches, of which the first is slower
    hook.after_test_epoch(None)
    assert hook.rows[224]['ms/image'] == pytest.approx(400 / 6)
    hook.before_test_epoch(SimpleNamespace(model=torch.nn.Identity()))
    assert hook._busy == []  # each size is measured by itself
    hook._busy = [(1., 1)]
    monkeypatch.setattr(sizes, 'all_gather_object', lambda found: [(2., 4, 0), (1., 5, 2**31)])  # of two processes
    hook.after_test_epoch(None)
    assert hook.rows[224]['ms/image'] == pytest.approx(3000 / 9) and hook.rows[224][MEMORY] == 2
    for name, value, shown in (('mine', 0.5, 0.5), ('coco/bbox_mAP', 0.5, 50), ('multi-label/mAP', 37., 37)):
        hook.rows = {160: {'size': 160, name: value, 'seconds': 1., 'ms/image': 9., MEMORY: 1.}}
        accuracy, *others = hook.content()[-1].axes
        assert f'{value:.4f}' in hook.table() and len(others) == 2 and accuracy.lines[0].get_ydata() == [shown]
