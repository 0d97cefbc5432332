"""Teachers: of which library, with which weights, and which images they see."""
import pytest
import torch
from mmpretrain.models import ClsDataPreprocessor

from helpers.models import assert_equal, randomise
from helpers.paths import ROOT, TINY_CLS_CONFIG
from xcit_dense.errors import CheckpointError, ConfigError, DataError
from xcit_dense.ssl import teacher as teachers
from xcit_dense.ssl.teacher import Teacher, TeacherOptions, load_teacher

IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
#: A config in the manner of mmpretrain: the preprocessor at the top, blue first.
TINY_OF_MMPRETRAIN = """
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet', depth=18, stem_channels=8, base_channels=8),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=64))
data_preprocessor = dict(num_classes=1000, mean=[103.53, 116.28, 123.675], std=[57.375, 57.12, 58.395])
"""


def students(**options):
    return ClsDataPreprocessor(**(options or dict(IMAGENET, to_rgb=True)))


def build_teacher(options, num_classes, student):
    return Teacher(*options.build(num_classes), student)


def images():
    """Two images as they are read: blue, green, red from 0 to 255."""
    return torch.randint(0, 256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(1)).float()


@pytest.mark.parametrize('student', (dict(IMAGENET, to_rgb=True), dict(mean=[10, 20, 30], std=[3, 2, 1]), dict(
    to_rgb=True), {}))
def test_a_timm_teacher_sees_its_own_normalised_images(student):
    """Red first, from -1 to 1, whatever the student sees; the last two students see the plain values."""
    pytest.importorskip('timm')
    teacher = build_teacher(TeacherOptions('timm', 'test_resnet'), 4, students(**student or dict(pad_value=0))).eval()
    wanted = teacher.model((images().flip(1) / 255 - 0.5) / 0.5)
    seen = ClsDataPreprocessor(**student)(dict(inputs=images()))['inputs']
    assert (teacher(seen) - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_a_teacher_of_mmpretrain_by_a_config_or_a_name(tmp_path, monkeypatch):
    """A name comes with the file that mmpretrain publishes."""
    (tmp_path / 'teacher.py').write_text(TINY_OF_MMPRETRAIN)
    teacher = build_teacher(TeacherOptions('mmpretrain', str(tmp_path / 'teacher.py')), 7, students()).eval()
    randomise(teacher.model)
    seen = (images() - torch.tensor([103.53, 116.28, 123.675]).view(-1, 1, 1)) / torch.tensor(
        [57.375, 57.12, 58.395]).view(-1, 1, 1)
    wanted = teacher.model.head(teacher.model.extract_feat(seen))
    got = teacher(students()(dict(inputs=images()))['inputs'])
    assert got.shape == (2, 7) and (got - wanted).abs().max() < 1e-5 * wanted.abs().max()
    options = TeacherOptions('mmpretrain', 'resnet18_8xb32_in1k')
    monkeypatch.setattr(teachers, 'fetch', lambda source: source)
    assert options.fetch().endswith('resnet18_8xb32_in1k_20210831-fbbb1da6.pth')
    assert build_teacher(options, 9, students()).eval()(images()).shape == (2, 9)


def test_a_teacher_of_this_package():
    teacher = build_teacher(TeacherOptions('xcit_dense', str(TINY_CLS_CONFIG)), 6, students()).eval()
    randomise(teacher.model)
    seen = students()(dict(inputs=images()))['inputs']
    assert torch.equal(teacher(seen), teacher.model.backbone(seen)) and teacher(seen).shape == (2, 6)
    named = build_teacher(TeacherOptions('xcit_dense', 'xcit_n12_p8_small'), 6, students())
    assert named.model.backbone.arch.depth == 12


def test_weights_load_strictly(teacher_file, tmp_path):
    teacher = build_teacher(TeacherOptions('timm', 'test_resnet'), 3, students())
    state = torch.load(teacher_file)['model']
    load_teacher(teacher, teacher_file)
    assert_equal(teacher.model.state_dict(), state)
    before = {name: value.clone() for name, value in state.items()}
    del state['fc.bias']
    torch.save(state, tmp_path / 'part.pth')
    with pytest.raises(CheckpointError, match='missing in the file.*fc.bias'):
        load_teacher(teacher, tmp_path / 'part.pth')
    assert_equal(dict(teacher.model.state_dict()), before)


def test_the_default_teacher_has_the_names_of_its_file():
    """DeiT's file has timm's names."""
    timm = pytest.importorskip('timm')
    with torch.device('meta'):
        names = set(timm.create_model('regnety_160', num_classes=1000).state_dict())
    assert {'stem.conv.weight', 's1.b1.conv1.conv.weight', 's1.b1.se.fc1.bias', 's4.b1.downsample.bn.running_var',
            's3.b11.conv3.bn.weight', 'head.fc.weight'} <= names


def test_a_teacher_of_other_classes(teacher_file, tmp_path):
    content = dict(state_dict=torch.load(teacher_file)['model'],
                   meta=dict(dataset_meta=dict(classes=['blue', 'green', 'red'])))
    torch.save(content, tmp_path / 'teacher.pth')
    for num_classes, names, *words in (
            (4, (), 'fc.weight (3, ', ' in the file, (4, '),
            (3, ('blue', 'red', 'green'), "class 1 is 'green', not 'red'", 'order'),
            (3, ('blue', 'green', 'pink'), "without 'pink' and with 'red'")):
        teacher = build_teacher(TeacherOptions('timm', 'test_resnet'), num_classes, students())
        with pytest.raises(DataError if names else CheckpointError) as error:
            load_teacher(teacher, tmp_path / 'teacher.pth', names)
        assert all(word in str(error.value) for word in (*words, 'teacher.pth')), error.value
    load_teacher(teacher, tmp_path / 'teacher.pth', ('blue', 'green', 'red'))


def test_no_such_classifier():
    pytest.importorskip('timm')
    for library, name, word in (
            ('timm', 'regnety160', 'Unknown model'), ('timm', 'regnety_160.deit_in1', 'Invalid pretrained tag'),
            ('mmpretrain', 'resnet18_8xb32_in1', 'Failed to find model'),
            ('xcit_dense', 'xcit_m24_p16_custm', 'did you mean xcit_m24_p16_custom'),
            ('xcit_dense', 'maskrcnn_xcit_n12_p16_small', 'MaskRCNN is not in the mmpretrain::model registry'),
            ('xcit_dense', 'xcit_n12_p16_dino_small', 'is not a classifier')):
        with pytest.raises(ConfigError, match=f'model.teacher.name: {name} of {library} .*{word}'):
            TeacherOptions(library, name).build(3)


def test_no_file(tmp_path, monkeypatch):
    pytest.importorskip('timm')
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    for checkpoint, kind, *words in (
            (None, ConfigError, 'checkpoint is missing', 'test_resnet of timm'),
            ('gone.pth', CheckpointError, 'there is no file', 'gone.pth'),
            ('https://127.0.0.1:9/teacher.pth', CheckpointError, 'cannot fetch', 'put the file at')):
        with pytest.raises(kind) as error:
            TeacherOptions('timm', 'test_resnet', checkpoint).fetch()
        assert all(word in str(error.value) for word in words) and 'no-pretrained' not in str(error.value)


def test_the_config_names_the_published_teacher():
    """With the average of the base."""
    from xcit_dense import get_config
    cfg = get_config('xcit_s12_p16_imagenet_dist')
    assert [hook['type'] for hook in cfg.custom_hooks] == ['TeacherHook', 'AverageHook']
    assert cfg.model.teacher.checkpoint.endswith('/deit/regnety_160-a5fe301d.pth')
    base = get_config(ROOT / 'configs/xcit_s12_p16_imagenet.py')
    assert all(cfg[key] == base[key] for key in ('optim_wrapper', 'param_scheduler', 'train_dataloader', 'train_cfg'))
    assert {**cfg.model, 'type': 'ImageClassifier'} | dict(base.model) == {**cfg.model, 'type': 'ImageClassifier'}
