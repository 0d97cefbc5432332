"""Distillation in two processes."""
import re
import signal

import pytest
import torch

from helpers.models import assert_equal
from helpers.paths import ROOT, TINY_CLS_CONFIG
from helpers.runs import assert_same_run
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.weights import newest_checkpoint, read_checkpoint

pytestmark = pytest.mark.filterwarnings('ignore')

#: Nothing is drawn at random, and the loss of a batch is the mean of those of its parts.
CONFIG = """_base_ = '{base}'
custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmpretrain', 'helpers.rank_dump'])
randomness = dict(seed=1)
model = dict(
    type='DistilledClassifier',
    teacher=dict(library='timm', name='test_resnet', checkpoint='{teacher}'),
    backbone=dict(drop_path_rate=0.),
    train_cfg=dict(_delete_=True))
train_dataloader = dict(
    sampler=dict(_delete_=True, type='DefaultSampler'), dataset=dict(pipeline=_base_.test_pipeline), batch_size={batch})
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='SGD', lr=0.1, weight_decay=0.01),
    clip_grad=dict(max_norm=5.),
    paramwise_cfg=None)
val_cfg = None
val_dataloader = None
val_evaluator = None
custom_hooks = [dict(type='TeacherHook'), dict(type='RankDumpHook'), dict(type='EvalNormsHook'), {hooks}]
{more}
"""


@pytest.fixture
def run(two_processes, class_folders, teacher_file, tmp_path):
    """A function that trains in one or two processes."""

    def train(name, processes, *options, hooks='', more='', check=True):
        config = tmp_path / f'{name}.py'
        config.write_text(CONFIG.format(base=TINY_CLS_CONFIG, teacher=teacher_file, batch=4 // processes, hooks=hooks,
                                        more=more))
        tool = run_tool if processes == 1 else two_processes.run_tool
        return tool('train.py', config, '--data-root', class_folders, '--work-dir', tmp_path / name, *options,
                    check=check)

    return train


@pytest.mark.slow
def test_two_processes_learn_what_one_does_with_the_joined_batch(run, teacher_file, tmp_path):
    """Also with the student in shares (FSDP), which alone is sharded, and resumes exactly."""
    run('two', 2)
    run('one', 1)
    first, second, whole = (torch.load(tmp_path / name) for name in ('two/rank0.pt', 'two/rank1.pt', 'one/rank0.pt'))
    assert len(whole['losses']) == 6 and first['losses'] != second['losses']
    for loss, a, b in zip(whole['losses'], first['losses'], second['losses'], strict=True):
        assert (a + b) / 2 == pytest.approx(loss, rel=1e-5)
    sharding = f"model_wrapper_cfg = {load_config(ROOT / 'configs/_base_/fsdp.py').model_wrapper_cfg}\n"
    done, _ = run('shares', 2, more=sharding)
    assert 'this process holds' in done.stdout
    stop = "dict(type='SignalHook', rank=1, iteration=3, number='SIGTERM')"
    for done in run('run', 2, hooks=stop, more=sharding, check=False):
        assert done.returncode == 128 + signal.SIGTERM
    done, _ = run('run', 2, '--resume', more=sharding)
    assert re.search(r'teacher: .* from the teacher in .*iter_3\.pth', done.stdout)
    wanted, got, resumed = (read_checkpoint(newest_checkpoint(tmp_path / name)) for name in ('two', 'shares', 'run'))
    for each in (wanted, got):
        assert_equal(each['teacher'], torch.load(teacher_file)['model'])
    a, b = (torch.cat([value.double().flatten() for value in each['state_dict'].values()]) for each in (got, wanted))
    assert (a - b).norm() < 2e-6 * b.norm()
    assert_same_run(resumed, got)
