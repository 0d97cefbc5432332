"""A small teacher of timm, and tiny trainings with it."""
import pytest
import torch

from helpers.models import randomise
from helpers.paths import TINY_CLS_CONFIG
from helpers.runs import make_config

pytest.importorskip('mmpretrain')


@pytest.fixture(scope='session')
def teacher_file(tmp_path_factory):
    """Weights of timm's test_resnet for three classes, as DeiT's file has its own; it normalises with 0.5."""
    timm = pytest.importorskip('timm')
    torch.manual_seed(5)
    path = tmp_path_factory.mktemp('teacher') / 'teacher.pth'
    torch.save(dict(model=randomise(timm.create_model('test_resnet', num_classes=3)).state_dict()), path)
    return path


@pytest.fixture
def distilled(class_folders, teacher_file):
    """A function that returns the config of a tiny distillation."""
    def make(work_dir, workers=0, model=(), save=True, **changes):
        cfg = make_config(TINY_CLS_CONFIG, class_folders, work_dir, workers)
        cfg.model.update(type='DistilledClassifier', **dict(teacher=dict(
            library='timm', name='test_resnet', checkpoint=str(teacher_file), image_size=32), **dict(model)))
        cfg.custom_hooks = [dict(type='TeacherHook', save=save), *cfg.custom_hooks]
        cfg.merge_from_dict(changes)
        return cfg
    return make
