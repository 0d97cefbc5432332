"""From an export to a model: the tools, with --data-root and nothing else of the data."""
import json
import shutil
from pathlib import Path

import pytest
from annotations import exports

from helpers.paths import ROOT, TINY_CONFIG
from helpers.runs import At, assert_same_run, die, train
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes

LONG = '--cfg-options', 'train_cfg.max_epochs=1'


@pytest.fixture
def boxes_config(tmp_path):
    """The tiny config without masks."""
    config = tmp_path / 'fasterrcnn_tiny.py'
    config.write_text(f'''_base_ = '{ROOT}/configs/fasterrcnn_xcit_n12_p16_small.py'
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=32, depth=4, num_heads=4, out_indices=(0, 1, 2, 3))),
    neck=dict(in_channels=[32] * 4))
train_dataloader = dict(batch_size=2, num_workers=0, persistent_workers=False)
val_dataloader = dict(num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
''')
    return config


def test_from_roboflow_to_predictions(tmp_path):
    """With the category ids of the export, and without its parent category."""
    root, run = exports.roboflow(tmp_path / 'data', 4, 2, 1), tmp_path / 'run'
    done = run_tool('train.py', TINY_CONFIG, '--data-root', root, '--work-dir', run, '--no-pretrained', *LONG)
    assert done.stdout.count('data        COCO in ') == 1
    assert '4 of 4 images and 12 of 12 objects of 3 classes' in done.stdout
    done = run_tool('test.py', TINY_CONFIG, run, '--data-root', root, '--work-dir', tmp_path / 'tested')
    assert 'coco/segm_mAP' in done.stdout and '1 image, 3 objects' in done.stdout
    run_tool('predict.py', TINY_CONFIG, run, root / 'test', '--out', tmp_path / 'out', '--score-thr', '0.01')
    found = json.loads((tmp_path / 'out/results.json').read_text())
    assert found and {result['category_id'] for result in found} <= {1, 2, 3}
    done = run_tool('check_data.py', TINY_CONFIG, '--data-root', root, '--out', tmp_path / 'found')
    assert f'in {root}' in done.stdout and '0 errors' in done.stdout


def test_boxes_without_masks(boxes_config, tmp_path, call_tool):
    """Mask R-CNN cannot be trained on them, which both tools say, with what can."""
    root = exports.yolo(tmp_path / 'data', counts=(4, 2))
    options = '--data-root', root, '--work-dir', tmp_path / 'run', '--no-pretrained', *LONG
    code, text = call_tool('train.py', TINY_CONFIG, *options)
    assert code == 1 and 'fasterrcnn_xcit_n12_p16_small' in text and 'no segmentation' in text
    assert call_tool('check_data.py', TINY_CONFIG, '--data-root', root, '--out', tmp_path / 'found')[0] == 1
    run_tool('train.py', boxes_config, *options)
    done = run_tool('test.py', boxes_config, tmp_path / 'run', '--data-root', root, '--work-dir', tmp_path / 'tested')
    assert 'coco/bbox_mAP' in done.stdout and 'segm' not in done.stdout


def test_tests_and_resumed_runs_use_the_images_that_the_training_held_out(boxes_config, tmp_path):
    root, run = exports.one_file(tmp_path / 'data', 6), tmp_path / 'run'
    run_tool('train.py', boxes_config, '--data-root', root, '--work-dir', run, '--no-pretrained', '--val-share', '0.5',
             *LONG)
    held_out, copy = (run / 'data/val.json').read_bytes(), tmp_path / 'elsewhere/copy.pth'
    copy.parent.mkdir()
    shutil.copy(run / 'epoch_1.pth', copy)
    for checkpoint in (run, run / 'epoch_1.pth', copy):
        done = run_tool('test.py', boxes_config, checkpoint, '--data-root', root, '--work-dir', tmp_path / 'tested')
        assert '3 images, 9 objects' in done.stdout
    run.rename(tmp_path / 'gone')
    done = run_tool('test.py', boxes_config, copy, '--data-root', root, '--work-dir', tmp_path / 'moved', check=False)
    assert done.returncode == 1 and 'would hold out 0.2' in done.message and '--val-share 0.5' in done.message
    (tmp_path / 'gone').rename(run)
    done = run_tool('train.py', boxes_config, '--data-root', root, '--work-dir', tmp_path / 'on', '--resume',
                    run / 'epoch_1.pth', '--cfg-options', 'train_cfg.max_epochs=2')
    assert 'training    3 images' in done.stdout
    assert (run / 'data/val.json').read_bytes() == held_out
    assert not (tmp_path / 'tested/data').exists() and not (tmp_path / 'on/data').exists()


def test_it_is_measured_without_a_trace(tmp_path):
    """`measure` keeps what it writes in a folder of its own."""
    root = exports.label_studio(tmp_path / 'data', 8)
    run_tool('measure.py', TINY_CONFIG, '--data-root', root, '--iterations', '1', '--images', '1', cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {'data', 'measured.json', '.made_by_xcit_dense.json'}


def _config(root, work_dir):
    cfg = load_config(TINY_CONFIG, data_root=root, work_dir=work_dir, replaces=True, pretrained=False,
                      cfg_options={'randomness.seed': 3, 'train_cfg.max_epochs': 2})
    take_classes(cfg)
    return cfg


@pytest.mark.slow
def test_a_run_on_divided_images_goes_on_exactly(tmp_path):
    root = exports.one_file(tmp_path / 'data', 6)
    whole = train(_config(root, tmp_path / 'whole'))
    with pytest.raises(RuntimeError, match='killed'):
        train(_config(root, tmp_path / 'cut'), At(5, die))
    assert_same_run(train(_config(root, tmp_path / 'cut'), resume=True), whole)
    shutil.rmtree(tmp_path / 'cut/data')  # it is drawn again
    _config(root, tmp_path / 'cut')
    for name in ('train', 'val'):
        files = [tmp_path / run / f'data/{name}.json' for run in ('whole', 'cut')]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_a_work_dir_that_was_moved(tmp_path):
    """The config that it holds names files where they were; they are found where it is now."""
    root = exports.one_file(tmp_path / 'data', 6)
    _config(root, tmp_path / 'run').dump(tmp_path / 'run/config.py')
    (tmp_path / 'run').rename(tmp_path / 'moved')
    held_out = (tmp_path / 'moved/data/val.json').read_bytes()
    for data_root in (root, None):
        cfg = load_config(tmp_path / 'moved/config.py', data_root=data_root, work_dir=tmp_path / 'moved',
                          pretrained=False)
        for part in (cfg.val_dataloader.dataset, cfg.val_evaluator):
            assert Path(part.ann_file) == tmp_path / 'moved/data/val.json'
    assert (tmp_path / 'moved/data/val.json').read_bytes() == held_out
