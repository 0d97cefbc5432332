"""Configs of the frameworks, as they are: a run that is stopped or killed goes on where one without the stop is."""
import re

import pytest

from helpers.refusals import stock
from helpers.runs import assert_same_run
from helpers.tools import run_process, run_tool
from xcit_dense.weights import newest_checkpoint, read_checkpoint

CASES = {'mmdet': ('retinanet/retinanet_r18_fpn_1x_coco.py', ('train_cfg.max_epochs=2', 'classes_from_data=True')),
         'mmseg': ('segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
                   ('classes_from_data=True', 'train_cfg.max_iters=6',
                    'train_cfg.val_interval=3', 'default_hooks.checkpoint.interval=3'))}


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
