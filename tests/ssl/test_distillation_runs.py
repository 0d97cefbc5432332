"""Trainings with a teacher: what the loss is, what stays unchanged, and exact resume."""
import math
import re
import shutil
import signal

import pytest
import torch
from mmengine.registry import MODELS, init_default_scope
from mmpretrain.models import ImageClassifier
from mmpretrain.structures import DataSample

from helpers.models import assert_equal
from helpers.paths import TINY_CLS_CONFIG
from helpers.runs import At, assert_same_run, stop_after, train
from helpers.tools import run_tool
from xcit_dense.errors import CheckpointError
from xcit_dense.ssl.distillation import distillation_loss
from xcit_dense.ssl.teacher import Teacher, load_teacher
from xcit_dense.train import AverageHook
from xcit_dense.weights import newest_checkpoint, read_checkpoint

pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.mark.slow
def test_stopped_and_resumed_is_the_same_to_the_last_bit(distilled, teacher_file, tmp_path):
    """Student, average and teacher, which stays as its file has it; also when that file is gone."""
    found = []

    def look(runner):
        average = next(hook for hook in runner.hooks if isinstance(hook, AverageHook)).ema_model
        found.append((average.module.teacher.module, runner.model.teacher.module, average.module is runner.model))

    wanted = train(distilled(tmp_path / 'whole'), At(2, look))
    assert wanted['meta']['iter'] == 6 and wanted['ema_state_dict']['steps'] == 6
    assert_equal(wanted['teacher'], torch.load(teacher_file)['model'])
    assert not [name for part in ('state_dict', 'ema_state_dict') for name in wanted[part] if 'teacher' in name]
    (theirs, ours, same), = found  # the average has none of its own
    assert ours is not None and theirs is ours and not same
    cfg = distilled(tmp_path / 'run', workers=2)
    file = shutil.copy(cfg.model.teacher.checkpoint, tmp_path / 'teacher.pth')
    cfg.model.teacher.checkpoint = str(file)
    stop_after(4, cfg)
    file.unlink()
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    got = train(cfg, resume=True)
    assert_same_run(got, wanted)
    assert_equal(got['teacher'], wanted['teacher'])
    # another one does not fit, which is an error and not a silent change
    cfg.model.teacher.name = 'test_vit'
    with pytest.raises(CheckpointError, match=r'the teacher in .*epoch_2\.pth does not fit'):
        train(cfg, resume=True)


STUDENT = [[1.5, -0.25, 0.75], [0.5, 2., -1.]]
TEACHER = [[-1., 3., 0.5], [2.5, 0.25, 2.25]]


def softmax(values, temperature=1.):
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


def test_the_hard_loss_by_hand():
    """The cross-entropy with the classes 1 and 0."""
    wanted = -(math.log(softmax(STUDENT[0])[1]) + math.log(softmax(STUDENT[1])[0])) / 2
    got = distillation_loss('hard', torch.tensor(STUDENT), torch.tensor(TEACHER))
    assert got.item() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize('temperature', (1., 3.))
def test_the_soft_loss_by_hand(temperature):
    """The divergence summed over images and classes, times the squared temperature, by the number of logits."""
    total = 0.
    for ours, theirs in zip(STUDENT, TEACHER, strict=True):
        pairs = zip(softmax(ours, temperature), softmax(theirs, temperature), strict=True)
        total += sum(q * (math.log(q) - math.log(p)) for p, q in pairs)
    got = distillation_loss('soft', torch.tensor(STUDENT), torch.tensor(TEACHER), temperature)
    assert got.item() == pytest.approx(total * temperature**2 / 6, rel=1e-5)
    assert distillation_loss('soft', torch.tensor(STUDENT), torch.tensor(STUDENT), 2.).item() == 0


def test_losses_of_half_types_are_computed_in_float32():
    halves = [torch.tensor(logits).bfloat16() for logits in (STUDENT, TEACHER)]
    whole = [logits.float() for logits in halves]
    assert torch.equal(distillation_loss('hard', *halves), distillation_loss('hard', *whole))
    assert torch.equal(distillation_loss('soft', *halves, 3.), distillation_loss('soft', *whole, 3.))


@pytest.fixture
def model(distilled, teacher_file, tmp_path):
    """A function that returns a model with its teacher."""

    def build(**options):
        cfg = distilled(tmp_path, model=options)
        init_default_scope('mmpretrain')
        built = MODELS.build(cfg.model)
        teacher = Teacher(*built.teacher_options.build(3), built.data_preprocessor)
        load_teacher(teacher, teacher_file)
        built.teacher.module = teacher.eval().requires_grad_(False)
        return built

    return build


def batch():
    samples = [DataSample().set_gt_label(label) for label in (0, 1, 2, 1)]
    return dict(inputs=torch.randint(0, 256, (4, 3, 32, 32)).float(), data_samples=samples)


@pytest.mark.parametrize('options', (
    dict(alpha=0.25), dict(alpha=0.75, distillation='soft', temperature=3.), dict(alpha=0.), dict(alpha=1.)))
def test_the_two_losses_are_weighted(options, model):
    """And the teacher sees the mixed images of the student."""
    built, seen, given = model(**options).eval(), [], batch()
    data = built.data_preprocessor(given, training=True)
    assert not torch.equal(data['inputs'], built.data_preprocessor(given)['inputs'])
    built.teacher.module.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    got = built.loss(**data)
    assert seen[0] is data['inputs']
    logits, target = built(data['inputs']), built.teacher.module(data['inputs'])
    ordinary = ImageClassifier.loss(built, **data)['loss']
    apart = distillation_loss('soft' if 'distillation' in options else 'hard', logits, target, 3.)
    assert set(got) == {'loss_cls', 'loss_distill'}
    assert got['loss_cls'].item() == pytest.approx((1 - options['alpha']) * ordinary.item(), rel=1e-6)
    assert got['loss_distill'].item() == pytest.approx(options['alpha'] * apart.item(), rel=1e-6)


def test_the_teacher_is_frozen_and_no_part_of_the_student(model):
    built = model().train()
    data = built.data_preprocessor(batch(), training=True)
    sum(built.loss(**data).values()).backward()
    assert not built.teacher.module.model.training and all(p.grad is None for p in built.teacher.module.parameters())
    assert all(p.grad is not None for p in built.parameters())
    assert all(name.startswith('backbone.') for name in built.state_dict())


def test_a_teacher_without_weight_changes_nothing(distilled, tmp_path):
    """Neither random numbers nor anything else of the student's training."""
    cfg = distilled(tmp_path / 'a', model=dict(alpha=0.), **{'train_cfg.max_epochs': 1})
    got = train(cfg)
    cfg.model = {key: value for key, value in cfg.model.items() if key not in ('teacher', 'alpha')}
    cfg.merge_from_dict({'model.type': 'ImageClassifier', 'work_dir': str(tmp_path / 'b')})
    cfg.custom_hooks = cfg.custom_hooks[1:]
    wanted = train(cfg)
    assert_equal(got['state_dict'], wanted['state_dict'])
    assert_equal(got['ema_state_dict'], wanted['ema_state_dict'])
    assert 'teacher' in got and 'teacher' not in wanted



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
    """And it resumes exactly."""
    run('two', 2)
    run('one', 1)
    first, second, whole = (torch.load(tmp_path / name) for name in ('two/rank0.pt', 'two/rank1.pt', 'one/rank0.pt'))
    assert len(whole['losses']) == 6 and first['losses'] != second['losses']
    for loss, a, b in zip(whole['losses'], first['losses'], second['losses'], strict=True):
        assert (a + b) / 2 == pytest.approx(loss, rel=1e-5)
    stop = "dict(type='SignalHook', rank=1, iteration=3, number='SIGTERM')"
    for done in run('run', 2, hooks=stop, check=False):
        assert done.returncode == 128 + signal.SIGTERM
    done, _ = run('run', 2, '--resume')
    assert re.search(r'teacher: .* from the teacher in .*iter_3\.pth', done.stdout)
    wanted, resumed = (read_checkpoint(newest_checkpoint(tmp_path / name)) for name in ('two', 'run'))
    assert_equal(wanted['teacher'], torch.load(teacher_file)['model'])
    assert_same_run(resumed, wanted)
