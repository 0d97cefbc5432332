"""What a run of DINO leaves: another run, a detector, a segmentor or a classifier starts from it, and tools read it."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.registry import MODELS, DefaultScope

from helpers.models import assert_equal, prefixed
from helpers.paths import ROOT, TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import as_in_a_process_of_its_own, run_tool
from helpers.weight_files import rejects, values, without
from xcit_dense import load
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import set_classes
from xcit_dense.errors import ConfigError
from xcit_dense.predict import classify
from xcit_dense.train import build_runner
from xcit_dense.train.init_from import find_class_rows, load_weights, start_model
from xcit_dense.weights import load_model, newest_checkpoint, read_checkpoint

pytest.importorskip('mmpretrain')

#: The backbone of the tiny detector and segmentor; the tiny classifier's is set to it.
ARCH = dict(embed_dims=32, depth=4, num_heads=4, patch_size=16)
TINY = {'model.backbone.arch': dict(_delete_=True, **ARCH),
        'model.head': dict(num_prototypes=8, hidden_channels=8, bottleneck_channels=4, batch_norm=False),
        'train_dataloader.batch_size': 2, 'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False, 'train_cfg.max_epochs': 1,
        'custom_hooks': [dict(type='DINOHook', warmup=1, freeze_last_layer=0)]}
CLASSES = ('cat', 'dog', 'bird')


@pytest.fixture(scope='module')
def images(class_folders):
    return class_folders / 'val/blue'  # two


@pytest.fixture(scope='module')
def run(images, tmp_path_factory):
    """The work dir of a run of one iteration."""
    cfg = load_config(ROOT / 'configs/xcit_n12_p16_dino_small.py', data_root=str(images), pretrained=False,
                      cfg_options=TINY)
    cfg.work_dir, cfg.randomness = str(tmp_path_factory.mktemp('dino')), dict(seed=3)
    with as_in_a_process_of_its_own():
        build_runner(cfg).train()
    return cfg.work_dir


@pytest.fixture(scope='module')
def halves(run):
    """The tensors of the teacher's and the student's backbone by their names in a classifier."""
    state = read_checkpoint(run)['state_dict']
    return [{n.removeprefix(f'{half}.backbone.'): v for n, v in state.items() if n.startswith(f'{half}.backbone.')}
            for half in ('teacher', 'student')]


def make(config, **changes):
    torch.manual_seed(5)
    cfg = load_config(config, pretrained=False, cfg_options=changes)
    set_classes(cfg, CLASSES)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        return MODELS.build(cfg.model)


def assert_backbone_is(model, state, fresh):
    """The backbone has the weights of a branch, and the rest those from before."""
    taken = prefixed(state, 'backbone.')
    assert_equal(values(model), {name: taken.get(name, value) for name, value in fresh.items()})


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG))
def test_detectors_and_segmentors_start_from_the_teacher(config, run, halves, capsys):
    model, path = make(config), newest_checkpoint(run)
    fresh = values(model)
    start_model(model, read_checkpoint(path), path, {}, (), CLASSES)
    assert_backbone_is(model, halves[0], fresh)
    assert f'the teacher of {path}' in model.backbone.weights_from
    assert 'projection head: the backbone starts from it, neck and heads start fresh' in capsys.readouterr().out


def test_classifiers_start_from_the_teacher(run, halves):
    model, wider = (make(TINY_CLS_CONFIG, **{'model.backbone.arch': dict(_delete_=True, **ARCH)}) for _ in range(2))
    wider.backbone.head = torch.nn.Linear(32, len(CLASSES) + 1)
    fresh, path = values(model), newest_checkpoint(run)
    start_model(model, read_checkpoint(path), path, find_class_rows(model, wider, len(CLASSES)), (), CLASSES)
    assert_backbone_is(model, halves[0], fresh)
    assert f'the teacher of {path}' in model.weights_from and '2 start fresh: backbone.head;' in model.weights_from
    # a test needs classes
    with rejects('2 missing ', 'backbone.head', ' has no classes', '--knn', 'init'):
        load_model(model, read_checkpoint(path), path)
    other = make(TINY_CLS_CONFIG, **{'model.backbone.arch': dict(_delete_=True, **ARCH | dict(embed_dims=64))})
    with rejects('of another shape ', 'cls_token') as caught:
        load_model(other, {'state_dict': model.state_dict()}, 'classes.pth')
    assert 'has no classes' not in str(caught.value)
    with rejects('of another shape ', 'cls_token'):
        start_model(other, read_checkpoint(path), path, find_class_rows(other, other, 3), (), CLASSES)


def dino(**arch):
    backbone = dict(type='XCiTClassifier', arch=ARCH | arch, num_classes=0, norm_cfg=dict(type='BN'))
    return MODELS.build(dict(type='DINO', backbone=backbone, head=dict(type='DINOHead', **TINY['model.head'])))


def start_run(model, checkpoint, path):
    cfg = load_config(ROOT / 'configs/xcit_n12_p16_dino_small.py', pretrained=False)
    load_weights(SimpleNamespace(model=model, cfg=cfg, loads_from=path, train_dataloader=SimpleNamespace(dataset=[])),
                 checkpoint, path, True)


@pytest.mark.parametrize('load_into', (load_model, start_run), ids=('resume', 'init-from'))
def test_another_run_begins_with_student_and_teacher(load_into, run):
    path, model = newest_checkpoint(run), dino()
    state = read_checkpoint(path)['state_dict']
    load_into(model, {'state_dict': state}, path)
    assert_equal(values(model), {n: state[n] for n in model.state_dict()})
    count = len(model.state_dict())
    assert model.weights_from.startswith(f'{count} of {count} tensors from {path} (')
    for spoiled in ('teacher.centre', 'student.head.mlp.0.weight'):
        with rejects('expected a whole DINO', f' 1 missing in the file ({spoiled}', model=model):
            load_into(model, {'state_dict': without(state, spoiled)}, 'damaged.pth')
    with rejects('expected a whole DINO', model=model):
        load_into(model, {'state_dict': without(state, 'student.')}, 'half.pth')
    with rejects('unknown to the model ', 'blocks.3'):
        load_into(dino(depth=3), {'state_dict': state}, path)


def test_a_run_begins_with_a_full_checkpoint_of_dino(run):
    """Its centre is in its loss."""
    source, model = read_checkpoint(run)['state_dict'], dino()
    student, teacher = ({n.removeprefix(f'{half}.'): v for n, v in source.items() if n.startswith(f'{half}.')}
                        for half in ('student', 'teacher'))
    centre = teacher.pop('centre')
    load_model(model, {'student': prefixed(student, 'module.'), 'teacher': teacher, 'epoch': 3,
                       'dino_loss': {'center': centre[None]}}, 'full.pth')
    assert_equal(model.state_dict(), {n: source[n] for n in model.state_dict()})


def test_tools_read_it(run, images, tmp_path):
    said = run_tool('convert_checkpoint.py', run, '--inspect').stdout
    assert all(f'\n{half}: weights in the official ImageNet layout of XCiT (32 channels, 4 blocks, 4 heads, patch 16) '
               'with class token, projection head\n' in said for half in ('teacher', 'student'))
    run_tool('attention.py', run, images, '--out', tmp_path)
    assert np.load(tmp_path / '0.npz')['attention'].shape == (2, 4, 3, 3)
    with rejects('has no classes', '`test CONFIG FILE --knn`', 'init_cfg'):
        classify(run, images / '0.png')
    with pytest.raises(ConfigError, match='is for features, not for detection or segmentation.*attention'):
        load(run)
