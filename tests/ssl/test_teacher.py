"""Teachers: of which library, with which weights, and which images they see."""
import sys

import pytest
import torch
import torch.nn.functional as F
from mmpretrain.models import ClsDataPreprocessor

from helpers.models import assert_equal, randomise
from helpers.paths import TINY_CLS_CONFIG
from xcit_dense import get_config
from xcit_dense.archs import arch_names
from xcit_dense.errors import CheckpointError, ConfigError, DataError, SetupError
from xcit_dense.ssl.teacher import TeacherOptions, check_teacher, load_teacher
from xcit_dense.weights.zoo import WEIGHTS

pytest.importorskip('timm')
IMAGENET = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
#: A config in the manner of mmpretrain: the preprocessor at the top, blue first.
TINY_OF_MMPRETRAIN = """
model = dict(
    type='ImageClassifier',
    backbone=dict(type='ResNet', depth=18, stem_channels=8, base_channels=8),
    neck=dict(type='GlobalAveragePooling'),
    head=dict(type='LinearClsHead', num_classes=1000, in_channels=64))
data_preprocessor = dict(num_classes=1000, mean=[103.53, 116.28, 123.675], std=[57.375, 57.12, 58.395])
test_dataloader = dict(dataset=dict(type='CustomDataset', data_root='', pipeline=[
    dict(type='ResizeEdge', scale=48, edge='short'), dict(type='CenterCrop', crop_size=40)]))
"""


def student(**options):
    return ClsDataPreprocessor(**(options or dict(IMAGENET, to_rgb=True)))


def built(library, name, classes=4, given=None, checkpoint='x.pth', **options):
    return TeacherOptions(library, name, checkpoint, **options).build(classes, given or student())


def images(side=32):
    """Two images as they are read: blue, green, red from 0 to 255."""
    return torch.randint(0, 256, (2, 3, side, side), generator=torch.Generator().manual_seed(1)).float()


@pytest.mark.parametrize('given', (dict(IMAGENET, to_rgb=True), dict(mean=[10, 20, 30], std=[3, 2, 1]), dict(
    to_rgb=True), {}))
@pytest.mark.parametrize('size, seen', ((32, 32), (None, 160), (24, 24)))
def test_a_teacher_sees_images_of_its_own_normalisation_and_size(given, size, seen):
    """Red first, from -1 to 1, whatever the student sees; the last two students see the plain values."""
    teacher, _ = built('timm', 'test_resnet', given=student(**given or dict(pad_value=0)), image_size=size)
    wanted = (images().flip(1) / 255 - 0.5) / 0.5
    if seen != 32:
        wanted = F.interpolate(wanted, (seen, seen), mode='bicubic', antialias=True)
    wanted = teacher.eval().model(wanted)
    got = teacher(ClsDataPreprocessor(**given)(dict(inputs=images()))['inputs'])
    assert (got - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_a_teacher_of_mmpretrain_by_a_config_or_a_name(tmp_path):
    """A name comes with the file that mmpretrain publishes; both with the size of the test."""
    (tmp_path / 'teacher.py').write_text(TINY_OF_MMPRETRAIN)
    teacher, _ = built('mmpretrain', str(tmp_path / 'teacher.py'), 7)
    assert teacher.size == 40
    randomise(teacher.model.eval())
    seen = (images(40) - torch.tensor([103.53, 116.28, 123.675]).view(-1, 1, 1)) / torch.tensor(
        [57.375, 57.12, 58.395]).view(-1, 1, 1)
    wanted = teacher.model.head(teacher.model.extract_feat(seen))
    got = teacher(student()(dict(inputs=images(40)))['inputs'])
    assert got.shape == (2, 7) and (got - wanted).abs().max() < 1e-5 * wanted.abs().max()
    (tmp_path / 'grey.py').write_text("model = dict(type='ImageClassifier', backbone=dict(type='LeNet5', num_classes=9"
                                      "), head=dict(type='ClsHead'))\ndata_preprocessor = dict(num_classes=9)\n")
    teacher, _ = built('mmpretrain', str(tmp_path / 'grey.py'), 7, student(mean=[0], std=[1]))  # nothing says channels
    assert teacher(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    teacher, source = built('mmpretrain', 'resnet18_8xb32_in1k', 9, checkpoint=None)
    assert source.endswith('resnet18_8xb32_in1k_20210831-fbbb1da6.pth') and teacher.size == 224
    assert teacher.eval()(images()).shape == (2, 9)


def test_an_xcit_as_a_teacher():
    teacher, _ = built('xcit_dense', str(TINY_CLS_CONFIG), 6)
    assert teacher.size == 32
    randomise(teacher.model.eval())
    seen = student()(dict(inputs=images()))['inputs']
    assert torch.equal(teacher(seen), teacher.model.backbone(seen)) and teacher(seen).shape == (2, 6)
    for name, side in (('xcit_n12_p8_small', 96), ('nano_12_p8_384_dist', 384), ('xcit://nano_12_p8_224', 224)):
        teacher, source = built('xcit_dense', name, 1000, checkpoint='x.pth' if 'small' in name else None)
        arch = teacher.model.backbone.arch
        assert (arch.embed_dims, arch.patch_size, teacher.size) == (128, 8, side)
        assert source == ('x.pth' if 'small' in name else f'xcit://{name.removeprefix("xcit://")}')


def test_what_libraries_publish_is_the_default():
    """The tags of torchvision choose weights."""
    for library, name, source, side in (
            ('timm', 'test_resnet', 'https://huggingface.co/timm/test_resnet.r160_in1k/resolve/main/model.safetensors',
             160),
            # with another address too, of a file in another form
            ('timm', 'vit_tiny_patch16_224', 'https://huggingface.co/timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k/'
             'resolve/main/model.safetensors', 224),
            ('torchvision', 'mnasnet0_5', 'https://download.pytorch.org/models/mnasnet0.5_top1_67.823-3ffadce67e.pth',
             224),
            ('torchvision', 'efficientnet_b1.IMAGENET1K_V1',
             'https://download.pytorch.org/models/efficientnet_b1_rwightman-bac287d4.pth', 240)):
        teacher, found = built(library, name, 1000, checkpoint=None)
        assert (found, teacher.size) == (source, side)
        with pytest.raises(ConfigError, match='missing: .* publishes are for 1,000 classes, the student has 4'):
            built(library, name, checkpoint=None)
    assert teacher.eval()(images(64)).shape == (2, 1000)


def test_a_teacher_of_torchvision_loads(tmp_path):
    """One that asks for the version of its tensors."""
    teacher, _ = built('torchvision', 'mnasnet0_5')
    state = {name: value.clone() for name, value in randomise(teacher.model).state_dict().items()}
    torch.save(state, tmp_path / 'x.pth')
    teacher, source = built('torchvision', 'mnasnet0_5', checkpoint=str(tmp_path / 'x.pth'), image_size=32)
    load_teacher(teacher, source)
    assert_equal(dict(teacher.model.state_dict()), state)


def test_weights_load_strictly(teacher_file, tmp_path):
    teacher, _ = built('timm', 'test_resnet', 3)
    state = torch.load(teacher_file)['model']
    load_teacher(teacher, teacher_file)
    assert_equal(teacher.model.state_dict(), state)
    digest = teacher.digest
    load_teacher(teacher, teacher_file, digest=digest)
    with pytest.raises(CheckpointError, match='is not the teacher that the resumed run began with'):
        load_teacher(teacher, teacher_file, digest=digest[::-1])
    state['fc.bias'][0] += 1e-3
    teacher.model.load_state_dict(state)
    assert digest != teacher.digest and len(digest) == 64
    before = {name: value.clone() for name, value in state.items()}
    del state['fc.bias']
    torch.save(state, tmp_path / 'part.pth')
    with pytest.raises(CheckpointError, match='missing in the file.*fc.bias'):
        load_teacher(teacher, tmp_path / 'part.pth')
    assert_equal(dict(teacher.model.state_dict()), before)


def test_a_teacher_of_classes_in_another_order(teacher_file, tmp_path):
    content = dict(state_dict=torch.load(teacher_file)['model'],
                   meta=dict(dataset_meta=dict(classes=['blue', 'green', 'red'])))
    torch.save(content, tmp_path / 'teacher.pth')
    teacher, _ = built('timm', 'test_resnet', 3)
    with pytest.raises(DataError, match="teacher.pth .*class 1 is 'green', not 'red'"):
        load_teacher(teacher, tmp_path / 'teacher.pth', ('blue', 'red', 'green'))
    load_teacher(teacher, tmp_path / 'teacher.pth', ('blue', 'green', 'red'))


def test_no_such_classifier():
    for library, name, word in (
            ('timm', 'regnety16', 'did you mean regnety_160'),
            ('timm', 'test_resnet.deit_in1', 'Invalid pretrained tag'),
            ('torchvision', 'resnet51', 'did you mean resnet50'),
            ('torchvision', 'fcn_resnet50', 'no classifier of this name'),
            ('torchvision', 'resnet18.V9', 'no weights V9, only IMAGENET1K_V1'),
            ('mmpretrain', 'resnet18_8xb32_in1', 'Failed to find model'),
            ('xcit_dense', 'xcit://small_24_p8_24', 'did you mean .*small_24_p8_224'),
            ('xcit_dense', 'maskrcnn_xcit_n12_p16_small', 'MaskRCNN is not in the mmpretrain::model registry'),
            ('xcit_dense', 'xcit_n12_p16_dino_small', 'is not a classifier')):
        with pytest.raises(ConfigError, match=f'model.teacher.name: {name} of {library} .*{word}'):
            built(library, name)
    with pytest.raises(ConfigError, match='images of the student have 5 channels, those of the teacher 3'):
        built('timm', 'test_resnet', given=student(mean=[0] * 5, std=[1] * 5))
    with pytest.raises(ConfigError, match='checkpoint is missing'):
        built('xcit_dense', 'xcit_n12_p8_small', checkpoint=None)


def test_a_size_that_a_teacher_cannot_take(tmp_path):
    """Before the training, though nothing is wrong with the weights."""
    teacher, _ = built('timm', 'vit_tiny_patch16_224', 3, image_size=32)
    torch.save(teacher.model.state_dict(), tmp_path / 'vit.pth')
    with pytest.raises(ConfigError, match='fails on an image of 32 pixels .model.teacher.image_size.: .*224'):
        load_teacher(teacher, tmp_path / 'vit.pth')


def test_the_configs_are_the_published_recipe_with_the_published_teacher():
    """Backbone and recipe of the config without a teacher, half of the loss by hard labels; the average stays."""
    for arch in arch_names():
        name = f'xcit_{arch[0]}{arch.split("_", 1)[1]}_imagenet'
        cfg, base = get_config(f'{name}_dist'), get_config(name)
        model = dict(cfg.model)
        assert (model.pop('type'), model.pop('distillation'), model.pop('alpha')) == (
            'DistilledClassifier', 'hard', 0.5)
        assert model.pop('teacher') == dict(
            library='timm', name='regnety_160.deit_in1k',
            checkpoint='https://dl.fbaipublicfiles.com/deit/regnety_160-a5fe301d.pth')
        assert dict(model, type='ImageClassifier') == base.model and f'{arch}_224_dist' in WEIGHTS
        assert cfg.custom_hooks == [dict(type='TeacherHook'), *base.custom_hooks]
        assert all(cfg[key] == base[key] for key in ('optim_wrapper', 'param_scheduler', 'train_dataloader',
                                                     'train_cfg', 'default_hooks'))
        assert cfg.train_cfg.max_epochs == 400


@pytest.mark.parametrize('library', ('timm', 'torchvision', 'mmpretrain'))
def test_without_the_library_nothing_starts(library, monkeypatch):
    cfg = get_config('xcit_s12_p16_imagenet_dist')
    cfg.model.teacher.update(library=library, name='resnet18')
    monkeypatch.setitem(sys.modules, f'{library}.apis' if library == 'mmpretrain' else f'{library}.models', None)
    monkeypatch.setitem(sys.modules, library, sys.modules[library] if library == 'mmpretrain' else None)
    with pytest.raises(SetupError, match=f'pip install {library}'):
        check_teacher(cfg)
