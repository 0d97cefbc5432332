"""Configs of the frameworks, as they are: a run that is stopped or killed goes on where one without the stop is."""
import os
import re
import signal

import pytest
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from helpers.refusals import stock
from helpers.runs import assert_same_run
from helpers.tools import run_tool
from xcit_dense.weights import newest_checkpoint, read_checkpoint

CASES = {'mmdet': ('retinanet/retinanet_r18_fpn_1x_coco.py', ('train_cfg.max_epochs=2', 'classes_from_data=True')),
         'mmseg': ('segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py',
                   ('train_cfg.max_iters=6', 'train_cfg.val_interval=3', 'default_hooks.checkpoint.interval=3'))}


@HOOKS.register_module()
class EndHook(Hook):
    """Ends a run after iterations of the training and, if wanted, of the validation: ``END='SIGTERM 4 2'``."""

    def after_train_iter(self, runner, *_, **__):
        self._end(runner.iter + 1)

    def after_val_iter(self, runner, batch_idx, *_, **__):
        self._end(runner.iter, batch_idx + 1)

    def _end(self, *places):
        how, *wanted = os.environ.get('END', '').split() or ['']
        if [*map(str, places)] == wanted:
            os.kill(os.getpid(), getattr(signal, how))


@pytest.mark.slow
@pytest.mark.parametrize('framework', CASES)
def test_stopped_killed_and_resumed(framework, demo_data, tmp_path):
    """In an iteration, in a validation, and without a warning."""
    name, options = CASES[framework]
    if not (path := stock(framework, name)).is_file():
        pytest.skip(f'this {framework} brings no configs')
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{path}'\ncustom_hooks = [dict(type='EndHook')]\n")

    def run(tool, work_dir, *more, end=''):
        return run_tool(tool, config, *more, '--data-root', demo_data, '--work-dir', tmp_path / work_dir,
                        '--image-size', 64, '--batch-size', 2, '--workers', 0, '--cfg-options', 'randomness.seed=3',
                        *options, check=False, env=dict(END=end))

    whole = run('train.py', 'whole', '--no-pretrained')
    assert whole.returncode == 0 and 'resume           after a stop' in whole.stdout, whole.stdout[-3000:]
    for end, code, said in (('SIGTERM 2', 143, 'Saved .*iter_2.pth'), ('SIGTERM 3 1', 143, 'Saved .*iter_3.pth'),
                            ('SIGKILL 5', -9, ''), ('', 0, '')):
        again = ['--resume'] if end != 'SIGTERM 2' else []
        done = run('train.py', 'stopped', '--no-pretrained', *again, end=end)
        assert done.returncode == code, done.stdout[-3000:]
        assert re.search(said, done.stdout)
    assert_same_run(*(read_checkpoint(newest_checkpoint(tmp_path / name)) for name in ('stopped', 'whole')))
    done = run('test.py', 'tested', tmp_path / 'stopped')
    assert done.returncode == 0, done.stdout[-3000:]
