"""A classifier distilled from one's own larger one, through the tools."""
import re
import sys

import pytest
import torch
from mmengine.config import Config

import xcit_dense
from helpers.models import assert_equal
from helpers.paths import ROOT, TINY_CLS_CONFIG
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import CheckpointError, SetupError
from xcit_dense.ssl.teacher import check_teacher
from xcit_dense.weights import best_checkpoint, newest_checkpoint, read_checkpoint

pytestmark = pytest.mark.filterwarnings('ignore')


def write_config(path, teacher_dir, base=TINY_CLS_CONFIG, teacher=TINY_CLS_CONFIG, more=''):
    """Write what a user writes."""
    path.write_text(f"""_base_ = '{base}'
model = dict(
    type='DistilledClassifier',
    teacher=dict(library='xcit_dense', name='{teacher}', checkpoint='{teacher_dir}'))
custom_hooks = [dict(type='TeacherHook')]
{more}""")
    return path


@pytest.fixture(scope='module')
def run_of_teacher(class_folders, tmp_path_factory):
    """Work dir of the teacher, a larger model."""
    work_dir = tmp_path_factory.mktemp('teacher')
    run_tool('train.py', TINY_CLS_CONFIG, '--data-root', class_folders, '--work-dir', work_dir, '--cfg-options',
             'classes_from_data=True', 'train_cfg.max_epochs=1')
    return work_dir


@pytest.fixture(scope='module')
def run(run_of_teacher, class_folders, tmp_path_factory):
    """Config, work dir and output of a soft distillation without pretrained weights."""
    folder = tmp_path_factory.mktemp('student')
    config = write_config(folder / 'distilled.py', run_of_teacher, more='classes_from_data = True\n')
    done = run_tool('train.py', config, '--data-root', class_folders, '--work-dir', folder / 'run', '--no-pretrained',
                    '--val-loss', '--cfg-options', 'model.distillation=soft', 'model.temperature=2')
    return config, folder / 'run', done.stdout


def test_what_a_training_tells(run, run_of_teacher):
    _, work_dir, said = run
    file = best_checkpoint(run_of_teacher)
    assert re.search(rf'teacher: .*{TINY_CLS_CONFIG.name} of xcit_dense, [\d,]+ parameters, from {file}', said)
    assert re.search(r'Epoch\(train\).*loss_cls: .*loss_distill: ', said) and 'val/loss_distill: ' in said
    assert 'weights          all random' in said  # of the student
    checkpoint = read_checkpoint(newest_checkpoint(work_dir))
    assert_equal(checkpoint['teacher'], read_checkpoint(file)['state_dict'])
    torch.load(newest_checkpoint(work_dir), weights_only=True)


def test_the_student_is_an_ordinary_classifier(run, class_folders, tmp_path, call_tool):
    """For tests with either config, for predictions and exports; the teacher may be gone."""
    config, work_dir, _ = run
    args = work_dir, '--data-root', class_folders, '--work-dir', tmp_path
    distilled, ordinary = (run_tool('test.py', each, *args, '--cfg-options', 'classes_from_data=True').stdout
                           for each in (config, TINY_CLS_CONFIG))
    line = 'accuracy/top1: '
    assert distilled.split(line)[1].split()[0] == ordinary.split(line)[1].split()[0]
    code, output = call_tool('classify.py', work_dir, class_folders / 'val', '--out', tmp_path / 'a.json')
    assert code == 0 and '3 classes (names: the checkpoint)' in output
    code, output = call_tool('attention.py', work_dir, class_folders / 'val', '--out', tmp_path / 'attention')
    assert code == 0 and 'WARNING' not in output, output


def test_a_student_starts_from_other_weights(run, class_folders, tmp_path):
    """From a classifier of other classes or one of the same; not its teacher, though the file holds that of the run."""
    config, work_dir, _ = run
    checkpoint = read_checkpoint(newest_checkpoint(work_dir))
    checkpoint['teacher'] = {name: value + 1 for name, value in checkpoint['teacher'].items()}
    torch.save(checkpoint, tmp_path / 'same.pth')
    checkpoint['meta']['dataset_meta']['classes'] = ('blue', 'green', 'pink')
    torch.save(checkpoint, tmp_path / 'other.pth')
    for name, options, words in (
            ('other', ('--init-from', tmp_path / 'other.pth'),
             r'backbone\.head\.weight: rows of blue, green are taken .*red start fresh'),
            ('same', ('--cfg-options', f'load_from={tmp_path / "same.pth"}'), 'weights  .*same.pth')):
        said = run_tool('train.py', config, '--data-root', class_folders, '--work-dir', tmp_path / name, '--epochs', 1,
                        *options).stdout
        assert re.search(words, said) and re.search(r'teacher: .* from .*epoch_1\.pth', said), said[-6000:]


def test_ones_own_classes_with_a_shipped_config(class_folders, tmp_path):
    """The whole check of a config finds nothing, and the classes of the data reach the student."""
    (tmp_path / 'teacher').mkdir()
    torch.save({}, tmp_path / 'teacher/epoch_1.pth')
    config = write_config(tmp_path / 'config.py', tmp_path / 'teacher', ROOT / 'configs/xcit_t12_p16_custom.py',
                          'xcit_m24_p16_custom')
    cfg = load_config(config, data_root=str(class_folders), check=True)
    take_classes(cfg)
    check_teacher(cfg)
    assert cfg.model.backbone.num_classes == cfg.model.data_preprocessor.num_classes == 3
    assert 'num_classes' not in cfg.model.teacher and cfg.model.backbone.init_cfg


@pytest.mark.parametrize(('changes', 'words'), (
    ({'model.distillation': 'harder'}, ('distillation must be hard or soft', )),
    ({'model.alpha': 1.5}, ('alpha, ', 'from 0 to 1')),
    ({'model.teacher.library': 'tim'}, ('teacher.library', 'did you mean timm?')),
    ({'model.teacher.chekpoint': 'x'}, ('Teacher', "'chekpoint'")),
    ({'custom_hooks': []}, ('nothing would load the teacher', "dict(type='TeacherHook')", 'replaces that of its base')),
    ({'model.teacher.name': 'xcit_m24_p16_custm'}, ('did you mean xcit_m24_p16_custom', )),
    ({'model.teacher.checkpoint': 'gone.pth'}, ('there is no file', 'gone.pth'))))
def test_mistakes_are_found_before_the_data_is_read(changes, words, tmp_path, call_tool):
    cfg = Config.fromfile(write_config(tmp_path / 'config.py', TINY_CLS_CONFIG), import_custom_modules=False)
    cfg.merge_from_dict(changes)
    cfg.dump(tmp_path / 'changed.py')
    code, message = call_tool('train.py', tmp_path / 'changed.py', '--work-dir', tmp_path / 'run')  # there is no data
    assert code == 1 and all(word in message for word in words), message
    assert not (tmp_path / 'run').exists()


def test_without_timm_nothing_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, 'timm', None)
    with pytest.raises(SetupError, match='pip install timm'):
        check_teacher(xcit_dense.get_config('xcit_s12_p16_imagenet_dist'))


def test_a_resumed_run_needs_no_file_of_its_teacher(tmp_path):
    cfg = xcit_dense.get_config(write_config(tmp_path / 'config.py', tmp_path / 'gone.pth'))
    check_teacher(cfg, resumed=True)
    with pytest.raises(CheckpointError, match='gone.pth'):
        check_teacher(cfg)
    cfg.model.type = 'ImageClassifier'
    check_teacher(cfg)
