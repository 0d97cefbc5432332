"""Configs of the frameworks stopped, killed and resumed; detectors and segmentors with other heads in every tool."""
import json
import re

import pytest

import xcit_dense
from helpers.refusals import stock
from helpers.runs import assert_same_run
from helpers.tools import run_process, run_tool
from xcit_dense.weights import newest_checkpoint, read_checkpoint

CASES = {'mmdet': ('retinanet/retinanet_r18_fpn_1x_coco.py', ('train_cfg.max_epochs=2', 'classes_from_data=True')),
         'mmseg': ('segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', (
             'classes_from_data=True', 'train_cfg.max_iters=6', 'train_cfg.val_interval=3',
             'default_hooks.checkpoint.interval=3'))}
#: Smaller images have fewer tokens than DINO has queries.
SIZE = '--image-size', 128
SHORT = *SIZE, '--batch-size', 2, '--workers', 0, '--no-fit'


@pytest.mark.slow
@pytest.mark.parametrize('framework', CASES)
def test_stopped_killed_and_resumed(framework, demo_data, tmp_path):
    name, options = CASES[framework]
    if not (path := stock(framework, name)).is_file():
        pytest.skip(f'this {framework} brings no configs')
    config = tmp_path / 'config.py'

    def run(tool, work_dir, *more, **end):
        hooks = [dict(type='SignalHook', rank=0, **end)] if end else []
        config.write_text(f"_base_ = '{path}'\ncustom_imports = dict(imports=['xcit_dense', 'helpers.rank_dump'])\n"
                          f'custom_hooks = {hooks}\n')
        run_in = run_process if end.get('number') == 'SIGKILL' else run_tool  # not the process of the tests
        return run_in(tool, config, *more, '--data-root', demo_data, '--work-dir', tmp_path / work_dir,
                      '--image-size', 64, '--batch-size', 2, '--workers', 0, '--cfg-options', 'randomness.seed=3',
                      *options, check=False)

    whole = run('train.py', 'whole', '--no-pretrained')
    assert whole.returncode == 0 and 'resume           after a stop' in whole.stdout, whole.stdout[-3000:]
    again = []
    for end, code, said in (
            (dict(number='SIGTERM', iteration=2), 143, 'Saved .*iter_2.pth'),
            (dict(number='SIGTERM', iteration=4, where='after_val_iter'), 143, 'Saved .*iter_3.pth'),
            (dict(number='SIGKILL', iteration=5), -9, ''), ({}, 0, '')):
        done = run('train.py', 'stopped', '--no-pretrained', *again, **end)
        again = ['--resume']
        assert done.returncode == code, done.stdout[-3000:]
        assert re.search(said, done.stdout)
    assert_same_run(*(read_checkpoint(newest_checkpoint(tmp_path / name)) for name in ('stopped', 'whole')))
    done = run('test.py', 'tested', tmp_path / 'stopped')
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize('name', ('atss', 'condinst', 'dino', 'mask2former'))
def test_every_tool_takes_a_detector_with_another_head(name, demo_data, tmp_path):
    """Only ATSS can be exported; the others are refused."""
    run, config = tmp_path / 'run', f'{name}_xcit_n12_p16_small'
    train = 'train', config, '--data-root', demo_data, *SHORT, '--work-dir'
    run_tool(*train, run, '--epochs', 1)
    lower = {'model.test_cfg.score_thr': 0.} if name in ('atss', 'condinst') else {}  # it has learned little
    options = ('--cfg-options', *(f'{key}={value}' for key, value in lower.items())) if lower else ()
    done = run_tool('test', config, run, '--data-root', demo_data, '--work-dir', tmp_path / 'test', *SIZE,
                    '--report', tmp_path / 'report', '--tta', *options)
    assert 'coco/bbox_mAP' in done.stdout and (tmp_path / 'report/report.html').is_file()
    images = demo_data / 'val2017'
    run_tool('predict', config, run, images, '--out', tmp_path / 'tiles', '--tile', 48, '--score-thr', 0.001,
             *SIZE, *options)
    found = json.loads((tmp_path / 'tiles/results.json').read_text())
    assert len({one['image_id'] for one in found}) == len([*images.iterdir()])
    objects = xcit_dense.load(run, threshold=0., cfg_options=lower)(sorted(images.iterdir())[0])
    assert len(objects.boxes) > 0 and (objects.masks is None) == (name not in ('condinst', 'mask2former'))
    run_tool(*train, tmp_path / 'again', '--iterations', 1, '--init-from', run)
    assert read_checkpoint(tmp_path / 'again')['meta']['iter'] == 3  # an epoch
    done = run_tool('export', config, run, tmp_path / 'model.onnx', *SIZE, check=False)
    assert done.returncode == (name != 'atss') and ('cannot be exported' in done.message) == (name != 'atss')


@pytest.mark.slow
def test_every_tool_takes_a_segmentor_with_queries(demo_data, tmp_path):
    run, config = tmp_path / 'run', 'mask2former_xcit_n12_p16_small_seg'
    run_tool('train', config, '--data-root', demo_data, '--work-dir', run, *SHORT, '--iterations', 2)
    done = run_tool('test', config, run, '--data-root', demo_data, '--work-dir', tmp_path / 'test', *SIZE,
                    '--report', tmp_path / 'report')
    assert 'mIoU' in done.stdout and (tmp_path / 'report/report.html').is_file()
    images = demo_data / 'images/validation'
    run_tool('predict', config, run, images, '--out', tmp_path / 'maps', '--tile', 48)
    assert xcit_dense.load(run)(sorted(images.iterdir())[0]).labels.ndim == 2
    done = run_tool('export', config, run, tmp_path / 'model.onnx', *SIZE, check=False)
    assert done.returncode == 1 and '--backbone exports only the backbone' in done.message
