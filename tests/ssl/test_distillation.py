"""Trainings with a teacher: what the loss is, what stays unchanged, exact resume, and the tools."""
import logging
import math
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmpretrain.models import ImageClassifier
from mmpretrain.structures import DataSample

from helpers.models import assert_equal
from helpers.paths import TINY_CLS_CONFIG
from helpers.runs import At, assert_same_run, stop_after, train
from helpers.tools import run_tool
from xcit_dense.errors import CheckpointError
from xcit_dense.ssl.distillation import TeacherHook, distillation_loss
from xcit_dense.ssl.teacher import load_teacher
from xcit_dense.train import AverageHook
from xcit_dense.weights import best_checkpoint, newest_checkpoint, read_checkpoint

pytestmark = pytest.mark.filterwarnings('ignore')
STUDENT = [[1.5, -0.25, 0.75], [0.5, 2., -1.]]
TEACHER = [[-1., 3., 0.5], [2.5, 0.25, 2.25]]


def softmax(values, temperature=1.):
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


@pytest.mark.parametrize('temperature', (1., 3.))
def test_the_losses_by_hand(temperature):
    """Hard: the cross-entropy with the classes 1 and 0. Soft: the divergence, times the squared temperature."""
    student, teacher = torch.tensor(STUDENT), torch.tensor(TEACHER)
    wanted = -(math.log(softmax(STUDENT[0])[1]) + math.log(softmax(STUDENT[1])[0])) / 2
    assert distillation_loss('hard', student, teacher, temperature).item() == pytest.approx(wanted, rel=1e-6)
    total = sum(q * (math.log(q) - math.log(p)) for ours, theirs in zip(STUDENT, TEACHER, strict=True)
                for p, q in zip(softmax(ours, temperature), softmax(theirs, temperature), strict=True))
    got = distillation_loss('soft', student, teacher, temperature)
    assert got.item() == pytest.approx(total * temperature**2 / 6, rel=1e-5)  # by the number of logits
    halves = student.bfloat16(), teacher.bfloat16()  # computed in float32
    wholes = [logits.float() for logits in halves]
    assert torch.equal(distillation_loss('soft', *halves, 3.), distillation_loss('soft', *wholes, 3.))


@pytest.fixture
def model(distilled, teacher_file, tmp_path):
    """A function that returns a model with its teacher."""
    def build(**options):
        cfg = distilled(tmp_path, model=options)
        init_default_scope('mmpretrain')
        built = MODELS.build(cfg.model)
        teacher, _ = built.teacher_options.build(3, built.data_preprocessor)
        load_teacher(teacher, teacher_file)
        built.teacher.module = teacher.eval().requires_grad_(False)
        return built
    return build


def test_a_wrapped_model_gets_its_teacher_too(model):
    built, saved = model(), {}
    built.teacher.module, built.head.num_classes, built.backbone.num_classes = None, 3, 0  # the head counts
    runner = SimpleNamespace(model=torch.nn.DataParallel(built), logger=logging.getLogger(), loads_from=None,
                             train_dataloader=SimpleNamespace(dataset=[]), _resume=True)
    hook = TeacherHook(save=True)
    hook.before_train(runner)
    hook.before_save_checkpoint(runner, saved)
    assert_equal(saved['teacher'], built.teacher.module.model.state_dict())
    hook, again = TeacherHook(), {}  # of a resumed run whose checkpoint has the teacher
    hook.after_load_checkpoint(runner, dict(saved, teacher_size=40))
    hook.before_train(runner)
    hook.before_save_checkpoint(runner, again)
    assert_equal(again['teacher'], saved['teacher'])
    assert (again['teacher_digest'], again['teacher_size']) == (saved['teacher_digest'], 32)  # as the config says


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
    """In mixed precision it computes in the half type."""
    built, types = model().train(), []
    data = built.data_preprocessor(batch(), training=True)
    built.teacher.module.model.fc.register_forward_hook(lambda module, args, out: types.append(out.dtype))
    with torch.autocast('cpu', torch.bfloat16):
        sum(built.loss(**data).values()).backward()
    assert types == [torch.bfloat16]
    assert not built.teacher.module.model.training and all(p.grad is None for p in built.teacher.module.parameters())
    assert all(p.grad is not None for p in built.parameters())
    assert all(name.startswith('backbone.') for name in built.state_dict())


def test_a_teacher_without_weight_changes_nothing(distilled, tmp_path):
    """Neither random numbers nor anything else of the student's training; not saved unless asked for."""
    cfg = distilled(tmp_path / 'a', save=False, model=dict(alpha=0.), **{'train_cfg.max_epochs': 1})
    got = train(cfg)
    cfg.model = {key: value for key, value in cfg.model.items() if key not in ('teacher', 'alpha')}
    cfg.merge_from_dict({'model.type': 'ImageClassifier', 'work_dir': str(tmp_path / 'b')})
    cfg.custom_hooks = cfg.custom_hooks[1:]
    wanted = train(cfg)
    assert_equal(got['state_dict'], wanted['state_dict'])
    assert_equal(got['ema_state_dict'], wanted['ema_state_dict'])
    assert got.keys() - wanted.keys() == {'teacher_digest', 'teacher_size'}


@pytest.mark.slow
@pytest.mark.parametrize('save', (True, False))
def test_stopped_and_resumed_is_the_same_to_the_last_bit(save, distilled, teacher_file, tmp_path):
    """Student, average and teacher; where the teacher is saved, its file may be gone, otherwise it must be the same."""
    found = []

    def look(runner):
        average = next(hook for hook in runner.hooks if isinstance(hook, AverageHook)).ema_model
        found.append((average.module.teacher.module, runner.model.teacher.module, average.module is runner.model))

    wanted = train(distilled(tmp_path / 'whole', save=save), At(2, look))
    assert wanted['meta']['iter'] == 6 and wanted['ema_state_dict']['steps'] == 6 and ('teacher' in wanted) == save
    assert not [name for part in ('state_dict', 'ema_state_dict') for name in wanted[part] if 'teacher' in name]
    (theirs, ours, same), = found  # the average has none of its own
    assert ours is not None and theirs is ours and not same
    cfg = distilled(tmp_path / 'run', workers=2, save=save)
    file = shutil.copy(cfg.model.teacher.checkpoint, tmp_path / 'teacher.pth')
    cfg.model.teacher.checkpoint = str(file)
    stop_after(4, cfg)
    if save:
        file.unlink()
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    cfg.custom_hooks[0].save = False  # a checkpoint with its teacher is enough
    got = train(cfg, resume=True)
    assert_same_run(got, wanted)
    if save:
        assert_equal(got['teacher'], torch.load(teacher_file)['model'])
        cfg.model.teacher.name = 'test_vit'
        words = r'the teacher in .*epoch_2\.pth does not fit'
    else:
        content = torch.load(teacher_file)
        content['model']['fc.bias'] += 1
        torch.save(content, file)
        words = r'model\.teacher\.checkpoint: .*teacher\.pth is not the teacher that the resumed run began with'
    with pytest.raises(CheckpointError, match=words):  # not a silent change
        train(cfg, resume=True)


def write_config(path, teacher, more=''):
    path.write_text(f"""_base_ = '{TINY_CLS_CONFIG}'
model = dict(
    type='DistilledClassifier',
    teacher=dict(library='xcit_dense', name='{TINY_CLS_CONFIG}', checkpoint='{teacher}'))
custom_hooks = [dict(type='TeacherHook')]
{more}""")
    return path


@pytest.fixture(scope='module')
def run_of_teacher(class_folders, tmp_path_factory):
    work_dir = tmp_path_factory.mktemp('teacher')
    run_tool('train.py', TINY_CLS_CONFIG, '--data-root', class_folders, '--work-dir', work_dir, '--cfg-options',
             'classes_from_data=True', 'train_cfg.max_epochs=1')
    return work_dir


@pytest.fixture(scope='module')
def run(run_of_teacher, class_folders, tmp_path_factory):
    """Config and work dir of a soft distillation without pretrained weights."""
    folder = tmp_path_factory.mktemp('student')
    config = write_config(folder / 'distilled.py', run_of_teacher, more='classes_from_data = True\n')
    done = run_tool('train.py', config, '--data-root', class_folders, '--work-dir', folder / 'run', '--no-pretrained',
                    '--val-loss', '--save-teacher', '--cfg-options', 'model.distillation=soft', 'model.temperature=2')
    assert 'val/loss_distill: ' in done.stdout
    return config, folder / 'run'


def test_a_teacher_sees_the_size_that_it_was_trained_at(class_folders, tmp_path):
    """Not at that of the config that it is built from, unless the config of the student sets one."""
    run_tool('train.py', TINY_CLS_CONFIG, '--data-root', class_folders, '--work-dir', tmp_path / 'teacher',
             '--epochs', 1, '--image-size', 48)
    config = write_config(tmp_path / 'student.py', tmp_path / 'teacher')
    for options, side in (((), 48), (('--cfg-options', 'model.teacher.image_size=40'), 40)):
        done = run_tool('train.py', config, '--data-root', class_folders, '--work-dir', tmp_path / str(side),
                        '--epochs', 1, *options)
        assert f'images of {side} pixels, from ' in done.stdout
        assert read_checkpoint(newest_checkpoint(tmp_path / str(side)))['teacher_size'] == side


def test_student_and_teacher_are_ordinary_classifiers(run, run_of_teacher, class_folders, tmp_path, call_tool):
    """The student by its work dir or taken out, with either config; the teacher taken out of the run's file."""
    config, work_dir = run
    for which in ('student', 'teacher'):
        run_tool('convert_checkpoint.py', work_dir, tmp_path / f'{which}.pth', '--to', 'official', '--which', which)

    def accuracy(*model):
        done = run_tool('test.py', *model, '--data-root', class_folders, '--work-dir', tmp_path)
        found = re.findall(r'accuracy/top\d: ([\d.]+)', done.stdout)
        assert len(found) == 2
        return found

    assert accuracy(work_dir) == accuracy(config, tmp_path / 'student.pth') == accuracy(
        TINY_CLS_CONFIG, tmp_path / 'student.pth')
    assert accuracy(run_of_teacher) == accuracy(TINY_CLS_CONFIG, tmp_path / 'teacher.pth')
    assert_equal(read_checkpoint(tmp_path / 'teacher.pth')['model'], {
        name.removeprefix('backbone.'): value
        for name, value in read_checkpoint(best_checkpoint(run_of_teacher))['state_dict'].items()})
    code, output = call_tool('classify.py', work_dir, class_folders / 'val', '--out', tmp_path / 'a.json')
    assert code == 0 and '3 classes (names: the checkpoint)' in output


@pytest.mark.parametrize(('changes', 'words'), (
    ({'model.distillation': 'harder'}, ('distillation must be hard or soft', )),
    ({'model.alpha': 1.5}, ('alpha, ', 'from 0 to 1')),
    ({'model.temperature': 0}, ('temperature', 'above 0')),
    ({'model.teacher.library': 'tim'}, ('teacher.library', 'did you mean timm?')),
    ({'model.teacher.chekpoint': 'x'}, ('Teacher', "'chekpoint'")),
    ({'model.teacher.image_size': 0}, ('teacher.image_size must be 1 or more', )),
    ({'custom_hooks': []}, ('nothing would load the teacher', "dict(type='TeacherHook')", 'replaces that of its base')),
    ({'model.teacher.name': 'xcit_m24_p16_custm'}, ('did you mean xcit_m24_p16_custom', )),
    ({'model.backbone.num_classes': 5, 'model.data_preprocessor.num_classes': 5}, (
        'teacher.pth', 'needs the 5 classes of the student')),
    ({'model.teacher.checkpoint': 'gone.pth'}, ('model.teacher.checkpoint: there is no file', 'gone.pth'))))
def test_mistakes_are_found_before_the_data_is_read(changes, words, run_of_teacher, tmp_path, call_tool):
    state = read_checkpoint(best_checkpoint(run_of_teacher))['state_dict']
    torch.save(state, tmp_path / 'teacher.pth')
    cfg = Config.fromfile(write_config(tmp_path / 'config.py', tmp_path / 'teacher.pth'), import_custom_modules=False)
    cfg.merge_from_dict(changes)
    cfg.dump(tmp_path / 'changed.py')
    code, message = call_tool('train.py', tmp_path / 'changed.py', '--work-dir', tmp_path / 'run')  # there is no data
    assert code == 1 and all(word in message for word in words), message
    assert not (tmp_path / 'run').exists()


def test_a_teacher_of_other_classes_than_those_of_the_data(run_of_teacher, class_folders, tmp_path, call_tool):
    """Where the config takes its classes from the data; a config without a teacher has none to save."""
    config = write_config(tmp_path / 'config.py', run_of_teacher, 'classes_from_data = True')
    root = shutil.copytree(class_folders, tmp_path / 'data')
    for part in ('train', 'val'):
        (root / part / 'red').rename(root / part / 'pink')
    code, message = call_tool('train.py', config, '--data-root', root, '--work-dir', tmp_path / 'run')
    assert code == 1 and "without 'pink' and with 'red'" in message
    code, message = call_tool('train.py', TINY_CLS_CONFIG, '--save-teacher', '--work-dir', tmp_path / 'run')
    assert code == 1 and '--save-teacher is for a config with a teacher' in message
