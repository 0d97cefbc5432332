"""What a classifier out of a weight file says of an image."""
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.models import randomise
from xcit_dense import XCiT, XCiTClassifier
from xcit_dense.data.imagenet import imagenet_classes
from xcit_dense.errors import CheckpointError, ConfigError, DataError
from xcit_dense.predict import classify, opening
from xcit_dense.predict.classifying import Classifier, middle_of
from xcit_dense.predict.opening import read_picture

ARCH = 'nano_12_p16'


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """By what they hold: files of small models."""
    folder = tmp_path_factory.mktemp('weights')
    torch.manual_seed(1)
    state = randomise(XCiTClassifier(ARCH, num_classes=1000, norm_cfg=dict(type='BN'))).state_dict()
    few = {name: value[:4] if name.startswith('head.') else value for name, value in state.items()}
    none = {name: value for name, value in state.items() if not name.startswith('head.')}
    meta = dict(dataset_meta=dict(classes=('a', 'b', 'c', 'd')))
    content = dict(
        imagenet=state, few=few, dino=none, own=dict(meta=meta, state_dict=few),
        wrong=dict(meta=dict(dataset_meta=dict(classes=('a', 'b'))), state_dict=few),
        run=dict(meta=meta, state_dict={f'backbone.{name}': value for name, value in few.items()}),
        dense=XCiT(ARCH, norm_cfg=dict(type='BN')).state_dict(),
        grey={name: value.sum(1, keepdim=True) if name == 'patch_embed.proj.0.0.weight' else value
              for name, value in few.items()})
    for name, tensors in content.items():
        torch.save(tensors, folder / f'{name}.pth')
    return folder


@pytest.fixture(scope='module')
def opened(files):
    """A function that gives the classifier of a file, for images of 64 pixels."""
    return cache(lambda name: Classifier(files / f'{name}.pth', size=64))


@pytest.fixture
def picture():
    return np.random.default_rng(3).integers(0, 256, (61, 97, 3), dtype=np.uint8)


def save(picture, path, **options):
    Image.fromarray(picture).save(path, **options)
    return path


def test_names_and_probabilities_are_those_of_the_logits(files, opened, picture, tmp_path):
    path = save(picture, tmp_path / 'a.png')
    guesses, again = classify(files / 'imagenet.pth', path, picture, top=3, size=64)
    assert guesses == again and len(guesses) == 3
    wanted = opened('imagenet').logits(picture).softmax(0)
    assert [g.index for g in guesses] == wanted.argsort(descending=True)[:3].tolist()
    for guess in guesses:
        assert guess.probability == wanted[guess.index] and guess.name == list(imagenet_classes().values())[guess.index]


@pytest.mark.parametrize('name, names, words', (
    ('own', 'abcd', 'checkpoint'), ('run', 'abcd', 'checkpoint'), ('few', '0123', 'no names'),
    ('wrong', '0123', 'has 2 names')))
def test_names_of_ones_own_classes(name, names, words, opened, picture):
    classifier = opened(name)
    assert classifier.names == tuple(names) and words in classifier.names_from
    assert {guess.name for guess in classifier(picture, top=9)} == set(names)
    assert sum(guess.probability for guess in classifier(picture)) == pytest.approx(1)


@pytest.mark.parametrize('name, words', (('dino', 'attention'), ('dense', 'predict CONFIG'), ('grey', '1 channel')))
def test_files_that_name_no_classes_say_what_does(name, words, files):
    with pytest.raises(CheckpointError, match=words):
        Classifier(files / f'{name}.pth')


@pytest.mark.parametrize('height, width', ((61, 97), (97, 61), (300, 257), (40, 40), (1, 1), (3, 190), (500, 9)))
@pytest.mark.parametrize('size, ratio', ((64, 1.), (56, 0.875), (33, 0.7)))
def test_images_are_prepared_as_by_mmpretrain(height, width, size, ratio):
    pytest.importorskip('mmpretrain')
    from mmcv.transforms import CenterCrop
    from mmpretrain.datasets.transforms import ResizeEdge
    picture = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    wanted = dict(img=picture)
    for step in (ResizeEdge(round(size / ratio), backend='pillow', interpolation='bicubic'), CenterCrop(size)):
        wanted = step(wanted)
    np.testing.assert_array_equal(middle_of(picture, size, ratio), wanted['img'])


@pytest.mark.parametrize('name', ('a.jpg', 'turned.jpg', 'grey.png', 'alpha.png', 'deep.png', 'colours.png'))
def test_logits_are_those_of_mmpretrains_pipeline(name, files, opened, picture, tmp_path):
    pytest.importorskip('mmpretrain')
    from mmengine.dataset import Compose
    from mmengine.registry import init_default_scope
    from mmpretrain.models import ClsDataPreprocessor
    init_default_scope('mmpretrain')
    path = save_as(name, picture, tmp_path)
    steps = [dict(type='LoadImageFromFile'),
             dict(type='ResizeEdge', scale=64, edge='short', backend='pillow', interpolation='bicubic'),
             dict(type='CenterCrop', crop_size=64), dict(type='PackInputs')]
    data = Compose(steps)(dict(img_path=str(path), gt_label=0))
    preprocess = ClsDataPreprocessor(
        mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
    batch = preprocess(dict(inputs=[data['inputs']], data_samples=[data['data_samples']]))['inputs']
    model = XCiTClassifier(ARCH, num_classes=4, norm_cfg=dict(type='BN')).eval()
    model.load_weights(files / 'few.pth')
    with torch.no_grad():
        wanted = model(batch)[0]
    logits = opened('few').logits(read_picture(path))
    torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-5)


def save_as(name, picture, folder):
    """Write a picture in one of the ways that there are."""
    path = folder / name
    if name == 'turned.jpg':
        exif = Image.Exif()
        exif[0x0112] = 6
        return save(picture, path, exif=exif)
    if name == 'deep.png':
        return save(picture[..., 0].astype(np.uint16) * 257, path)
    if name == 'colours.png':
        Image.fromarray(picture).quantize(16).save(path)
        return path
    return save(picture[..., 0] if name == 'grey.png' else
                np.dstack([picture, picture[..., :1]]) if name == 'alpha.png' else picture, path)


@pytest.mark.parametrize('shape', ((1, 1), (1, 30000), (30000, 2)))
def test_the_tiny_and_the_very_long(shape, monkeypatch):
    """A resize of the whole of them would take gigabytes."""
    resize, sizes = Image.Image.resize, []
    monkeypatch.setattr(Image.Image, 'resize', lambda image, size, *args: (
        sizes.append(size), resize(image, size, *args))[1] if max(size) < 20_000 else pytest.fail(f'{size}'))
    picture = np.full((*shape, 3), 7, np.uint8)
    length = shape.index(max(shape))
    picture[(slice(0, 9000), ) if length == 0 else (slice(None), slice(0, 9000))] = 200 if max(shape) > 1 else 7
    found = middle_of(picture, 224)
    assert found.shape == (224, 224, 3) and (found == 7).all() and sizes


@pytest.mark.parametrize('content', (b'', b'no image', None))
def test_a_file_that_is_no_image(content, opened, tmp_path):
    if content is not None:
        (tmp_path / 'a.jpg').write_bytes(content)
    with pytest.raises(DataError, match='a.jpg'):
        opened('few')(tmp_path / 'a.jpg')


@pytest.mark.parametrize('name, size', (
    ('few', 224), ('xcit_nano_12_p16_384_dist', 384), ('xcit_nano_12_p16_384.fb_dist_in1k', 384), ('a_384_dist', 224),
    ('xcit_nano_12_p16_224_dist', 224), ('epoch_384', 224),
    ('xcit-nano-12-p16_3rdparty-dist_in1k-384px_20230214-712e1f3b', 384),
    ('xcit_384.v2/my_224', 224), ('xcit_s12_384_dist/epoch_3', 224)))
def test_the_size_of_the_published_files(name, size, files, tmp_path):
    path = tmp_path / f'{name}.pth'
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(files / 'few.pth')
    assert resolution(path) == (size, 1.) and resolution(path, 96, 0.5) == (96, 0.5)


@pytest.mark.parametrize('source, size', (
    ('nano_12_p16_224', 224), ('nano_12_p16_384_dist', 384), ('xcit://nano_12_p16_384_dist', 384),
    ('https://dl.fbaipublicfiles.com/xcit/xcit_nano_12_p16_384_dist.pth', 384)))
def test_the_size_of_published_names(source, size, files, monkeypatch):
    monkeypatch.setattr(opening, 'fetch', lambda source: files / 'few.pth')  # no internet
    assert resolution(source) == (size, 1.)


def test_a_work_dir_is_no_published_file(files, tmp_path):
    folder = tmp_path / 'xcit_s12_384_dist'
    folder.mkdir()
    (folder / 'epoch_1.pth').symlink_to(files / 'few.pth')
    assert resolution(folder) == (224, 1.)


def resolution(*args, **options):
    classifier = Classifier(*args, **options)
    return classifier.size, classifier.crop_ratio


CONFIG = '''
model = dict(type='ImageClassifier', backbone=dict(type='XCiTClassifier', arch='nano_12_p16', num_classes=4),
             data_preprocessor=dict(mean=[1., 2., 3.], std=[4., 5., 6.], to_rgb=True))
test_dataloader = dict(dataset=dict(type='CustomDataset', pipeline=[
    dict(type='LoadImageFromFile'), {steps} dict(type='PackInputs')]))
'''
STEPS = "dict(type='ResizeEdge', scale=80), dict(type='mmpretrain.CenterCrop', crop_size={}), "


@pytest.mark.parametrize('crop, size, ratio, wanted', (
    (64, None, None, (64, 0.8)), (64, 32, None, (32, 0.8)),
    (64, None, 1., (64, 1.)), (64, 32, 0.5, (32, 0.5)), (None, 32, None, (32, 1.)), ('(64, 32)', 48, None, (48, 1.)),
    ('(64, 64)', None, None, (64, 0.8)), (None, None, None, None), ('(64, 32)', None, None, None)))
def test_the_config_of_the_training_tells_the_size(crop, size, ratio, wanted, files, tmp_path):
    config = tmp_path / 'config.py'
    config.write_text(CONFIG.format(steps=STEPS.format(crop) if crop else ''))
    if wanted:
        assert resolution(files / 'few.pth', size, ratio, config) == wanted
    else:
        with pytest.raises(ConfigError, match='--size'):
            resolution(files / 'few.pth', size, ratio, config)


def test_the_config_of_the_training_tells_the_normalisation(files, opened, picture, tmp_path):
    (tmp_path / 'config.py').write_text(CONFIG.format(steps=STEPS.format(80)).replace('scale=80', 'scale=64'))
    classifier = Classifier(files / 'few.pth', 64, config=tmp_path / 'config.py')
    assert classifier.size == 64 and not torch.allclose(classifier.logits(picture), opened('few').logits(picture))


@pytest.mark.parametrize('options, words', ((dict(size=0), 'got 0'), (dict(crop_ratio=0.), 'got 0'),
                                            (dict(crop_ratio=1.5), '1.5')))
def test_options_that_cannot_be(options, words):
    with pytest.raises(ConfigError, match=words):
        Classifier('any', **options)


def test_a_run_on_imagenet_has_the_short_names_too(tmp_path):
    """mmpretrain's data set has all synonyms."""
    categories = pytest.importorskip('mmpretrain.datasets.categories').IMAGENET_CATEGORIES
    state = XCiTClassifier('nano_12_p16', norm_cfg=dict(type='BN')).state_dict()
    torch.save(dict(state_dict=state, meta=dict(dataset_meta=dict(classes=categories))), tmp_path / 'run.pth')
    assert Classifier(tmp_path / 'run.pth').names[:2] == ('tench', 'goldfish')
