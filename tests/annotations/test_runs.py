"""From an export to a model: the tools, with --data-root and nothing else of the data."""
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from annotations import exports

from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.annotations import folder_of_training
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.weights.files import read_notes, write_notes


@pytest.mark.parametrize('make, images', (
    (lambda root: exports.roboflow(root, 4, 2, 1), 'test'),
    (lambda root: exports.yolo(root, ('train', 'val', 'test'), (4, 2, 1), polygons=True), 'images/test')))
def test_from_an_export_to_predictions(make, images, tmp_path):
    """With the category ids of Roboflow, and without its parent category; and those of YOLO."""
    root, run = make(tmp_path / 'data'), tmp_path / 'run'
    done = run_tool('train.py', TINY_CONFIG, '--data-root', root, '--work-dir', run, '--no-pretrained', '--cfg-options',
                    'train_cfg.max_epochs=1')
    assert done.stdout.count('data        ') == 1
    assert '4 of 4 images and 12 of 12 objects of 3 classes' in done.stdout
    done = run_tool('test.py', TINY_CONFIG, run, '--data-root', root, '--work-dir', tmp_path / 'tested')
    assert 'coco/segm_mAP' in done.stdout and '1 image, 3 objects' in done.stdout
    run_tool('predict.py', TINY_CONFIG, run, root / images, '--out', tmp_path / 'out', '--score-thr', '0.01')
    found = json.loads((tmp_path / 'out/results.json').read_text())
    assert found and {result['category_id'] for result in found} <= {1, 2, 3}
    done = run_tool('check_data.py', TINY_CONFIG, '--data-root', root, '--out', tmp_path / 'found')
    assert f'in {root}' in done.stdout and '0 errors' in done.stdout


def test_tests_and_resumed_runs_use_the_images_that_the_training_held_out(tmp_path):
    root, run = exports.one_file(tmp_path / 'data', 6), tmp_path / 'run'
    done = run_tool('train.py', TINY_CONFIG, '--data-root', root, '--work-dir', run, '--no-pretrained', '--val-share',
                    '0.5', '--cfg-options', 'train_cfg.max_epochs=1')
    assert done.stdout.count('data        ') == 1 and '3 of 3 images and 9 of 9 objects of 3 classes' in done.stdout
    held_out, copy = (run / 'data/val.json').read_bytes(), tmp_path / 'elsewhere/copy.pth'
    copy.parent.mkdir()
    shutil.copy(run / 'epoch_1.pth', copy)
    for checkpoint in (run, run / 'epoch_1.pth', copy):
        done = run_tool('test.py', TINY_CONFIG, checkpoint, '--data-root', root, '--work-dir', tmp_path / 'tested')
        assert '3 images, 9 objects' in done.stdout
    notes = read_notes(run)
    write_notes(run, replace(notes, run='another'))
    assert folder_of_training(copy) is None
    write_notes(run, notes)
    run.rename(tmp_path / 'gone')
    done = run_tool('test.py', TINY_CONFIG, copy, '--data-root', root, '--work-dir', tmp_path / 'moved', check=False)
    assert done.returncode == 1 and 'would hold out 0.2' in done.message and '--val-share 0.5' in done.message
    (tmp_path / 'gone').rename(run)
    done = run_tool('train.py', TINY_CONFIG, '--data-root', root, '--work-dir', tmp_path / 'on', '--resume',
                    run / 'epoch_1.pth', '--cfg-options', 'train_cfg.max_epochs=2')
    assert 'training    3 images' in done.stdout and (run / 'data/val.json').read_bytes() == held_out
    assert not (tmp_path / 'tested/data').exists() and not (tmp_path / 'on/data').exists()


def test_a_work_dir_that_was_moved(tmp_path):
    """The config that it holds names files where they were; they are found where it is now."""
    root = exports.one_file(tmp_path / 'data', 6)
    cfg = load_config(TINY_CONFIG, data_root=root, work_dir=tmp_path / 'run', replaces=True, pretrained=False)
    take_classes(cfg)
    cfg.dump(tmp_path / 'run/config.py')
    shutil.copytree(tmp_path / 'run', tmp_path / 'copy')  # of one that is still there, they are not looked for
    cfg = load_config(tmp_path / 'copy/config.py', work_dir=tmp_path / 'copy', pretrained=False)
    assert Path(cfg.val_evaluator.ann_file) == tmp_path / 'run/data/val.json'
    (tmp_path / 'run').rename(tmp_path / 'moved')
    held_out = (tmp_path / 'moved/data/val.json').read_bytes()
    for data_root in (root, None):
        cfg = load_config(tmp_path / 'moved/config.py', data_root=data_root, work_dir=tmp_path / 'moved',
                          pretrained=False)
        for part in (cfg.val_dataloader.dataset, cfg.val_evaluator):
            assert Path(part.ann_file) == tmp_path / 'moved/data/val.json'
    assert (tmp_path / 'moved/data/val.json').read_bytes() == held_out
