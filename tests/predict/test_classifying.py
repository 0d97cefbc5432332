"""What a classifier out of a weight file says of an image, and what its checkpoint or a config tells of a model."""
import sys
from contextlib import nullcontext
from functools import cache, partial

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from helpers.models import prefixed, randomise
from helpers.paths import TINY_CLS_CONFIG
from xcit_dense import XCiT, XCiTClassifier
from xcit_dense.config.loading import read_config
from xcit_dense.data.class_folders import imagenet_classes
from xcit_dense.errors import CheckpointError, ConfigError
from xcit_dense.predict import classify, weight_file
from xcit_dense.predict.attention import Attention
from xcit_dense.predict.classifying import Classifier, middle_of
from xcit_dense.predict.weight_file import open_model, read_picture
from xcit_dense.weights.convert import convert

ARCH, BN = 'nano_12_p16', dict(norm_cfg=dict(type='BN'))
INPUTS = dict(mean=[1., 2., 3.], std=[4., 5., 6.], bgr_to_rgb=True)
SMALL = dict(embed_dims=32, depth=2, num_heads=4, patch_size=16, tokens_norm=False)
PIPELINE = [dict(type='ResizeEdge', scale=80), dict(type='CenterCrop', crop_size=(64, 64))]
small = partial(dict, type='XCiTClassifier', arch=SMALL)


@pytest.fixture(scope='module')
def opened(files):
    """A function that gives the classifier of a file, for images of 64 pixels."""
    return cache(lambda name: Classifier(files / f'{name}.pth', size=64))


@pytest.fixture
def picture():
    return np.random.default_rng(3).integers(0, 256, (61, 97, 3), dtype=np.uint8)


def test_names_and_probabilities_are_those_of_the_logits(files, opened, picture, tmp_path):
    Image.fromarray(picture).save(tmp_path / 'a.png')
    guesses, again = classify(files / 'imagenet.pth', tmp_path / 'a.png', picture, top=3, size=64)
    assert guesses == again and len(guesses) == 3
    logits = opened('imagenet').logits(picture)
    wanted, names = logits.softmax(0), list(imagenet_classes().values())
    assert guesses == [(i, names[i], wanted[i]) for i in wanted.argsort(descending=True)[:3].tolist()]
    categories = pytest.importorskip('mmpretrain.datasets.categories').IMAGENET_CATEGORIES  # with all synonyms
    state = torch.load(files / 'imagenet.pth')
    torch.save(dict(state_dict=state, meta=dict(dataset_meta=dict(classes=categories))), tmp_path / 'run.pth')
    assert Classifier(tmp_path / 'run.pth').names == tuple(names)
    torch.save(dict(state_dict=state, meta=dict(dataset_meta=dict(classes=categories[1:]))), tmp_path / 'run.pth')
    assert Classifier(tmp_path / 'run.pth').names[:2] == ('0', '1')  # of other classes than ImageNet's


@pytest.mark.parametrize('name, names, words', (
    ('run', 'dbca', 'checkpoint'), ('few', '0123', 'no names'), ('many', '0123', 'has 5 names')))
def test_names_of_ones_own_classes(name, names, words, opened, picture):
    classifier = opened(name)
    assert classifier.names == tuple(names) and words in classifier.names_from
    guesses = classifier(picture, top=9)
    assert len(guesses) == 4 and all(guess.name == names[guess.index] for guess in guesses)
    assert sum(guess.probability for guess in guesses) == pytest.approx(1)


@pytest.mark.parametrize('name, words', (('dino', 'attention'), ('dense', 'predict CONFIG'), ('grey', '1 channel')))
def test_files_that_name_no_classes_say_what_does(name, words, files):
    with pytest.raises(CheckpointError, match=words):
        Classifier(files / f'{name}.pth')
    with pytest.raises(ConfigError, match='got 0'):
        Classifier('any', size=0)  # before a file is looked for


def test_images_are_prepared_as_by_mmpretrain():
    pytest.importorskip('mmpretrain')
    from mmcv.transforms import CenterCrop
    from mmpretrain.datasets.transforms import ResizeEdge
    for height, width in ((61, 97), (97, 61), (300, 257), (40, 40), (1, 1), (3, 190), (500, 9)):
        picture = np.random.default_rng(height).integers(0, 256, (height, width, 3), dtype=np.uint8)
        for size, ratio in ((64, 1.), (56, 0.875), (33, 0.7)):
            resized = ResizeEdge(round(size / ratio), backend='pillow', interpolation='bicubic')(dict(img=picture))
            assert np.array_equal(middle_of(picture, size, ratio), CenterCrop(size)(resized)['img']), (height, size)


@pytest.mark.parametrize('kind', ('turned', 'grey', 'alpha', 'deep', 'colours'))
def test_logits_are_those_of_mmpretrains_pipeline(kind, files, opened, picture, photograph, tmp_path):
    pytest.importorskip('mmpretrain')
    from mmengine.dataset import Compose
    from mmengine.registry import init_default_scope
    from mmpretrain.models import ClsDataPreprocessor
    init_default_scope('mmpretrain')
    path = photograph(tmp_path / 'a.jpg', picture)
    if kind != 'turned':
        path = tmp_path / 'a.png'
        image = Image.fromarray(dict(grey=picture[..., 0], alpha=np.dstack([picture, picture[..., :1]]),
                                     deep=picture[..., 0].astype(np.uint16) * 257).get(kind, picture))
        (image.quantize(16) if kind == 'colours' else image).save(path)
    steps = [dict(type='LoadImageFromFile'),
             dict(type='ResizeEdge', scale=64, edge='short', backend='pillow', interpolation='bicubic'),
             dict(type='CenterCrop', crop_size=64), dict(type='PackInputs')]
    data = Compose(steps)(dict(img_path=str(path), gt_label=0))
    preprocess = ClsDataPreprocessor(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], to_rgb=True)
    batch = preprocess(dict(inputs=[data['inputs']], data_samples=[data['data_samples']]))['inputs']
    model = XCiTClassifier(ARCH, num_classes=4, **BN).eval()
    model.load_weights(files / 'few.pth')
    with torch.no_grad():
        torch.testing.assert_close(opened('few').logits(read_picture(path)), model(batch)[0], rtol=1e-5, atol=1e-5)


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


@pytest.mark.parametrize('source, size', (
    ('xcit_nano_12_p16_384.fb_dist_in1k.pth', 384), ('a_384_dist.pth', 224), ('xcit_nano_12_p16_224_dist.pth', 224),
    ('xcit-nano-12-p16_3rdparty-dist_in1k-384px_20230214-712e1f3b.pth', 384), ('xcit_384.v2/my_224.pth', 224),
    ('https://a.com/xcit/xcit_nano_12_p16_384_dist.pth', 384), ('xcit://nano_12_p16_384_dist', 384),
    ('xcit_s12_384_dist', 224)))
def test_the_size_of_published_files(source, size, files, tmp_path, monkeypatch):
    monkeypatch.setattr(weight_file, 'fetch', lambda source: files / 'few.pth')  # no internet
    monkeypatch.setattr(weight_file, '_published', str)
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'xcit_s12_384_dist').mkdir()
    assert resolution(source) == (size, 1.)


def config_of(backbone, inputs=INPUTS, pipeline=PIPELINE, **more):
    return dict(model=dict(backbone=backbone, data_preprocessor=inputs),
                test_dataloader=dict(dataset=dict(type='CustomDataset', pipeline=pipeline)), **more)


def write_config(folder, *args, **options):
    (folder / 'config.py').write_text(Config(config_of(*args, **options)).pretty_text)
    return folder / 'config.py'


def resolution(*args, **options):
    classifier = Classifier(*args, **options)
    return classifier.size, classifier.crop_ratio


@pytest.mark.parametrize('crop, size, ratio, wanted', (
    (64, 32, None, (32, 0.8)), (64, None, 1., (64, 1.)), (None, 32, None, (32, 1.)), ((64, 32), 48, None, (48, 1.)),
    ((64, 64), None, None, (64, 0.8)), (None, None, None, None), ((64, 32), None, None, None)))
def test_the_config_of_the_training_tells_the_size(crop, size, ratio, wanted, files, tmp_path):
    steps = [PIPELINE[0], dict(type='mmpretrain.CenterCrop', crop_size=crop)] if crop else []
    config = write_config(tmp_path, dict(type='XCiTClassifier', arch=ARCH, num_classes=4), pipeline=[
        dict(type='LoadImageFromFile'), *steps, dict(type='PackInputs')])
    with nullcontext() if wanted else pytest.raises(ConfigError, match='--size'):
        assert resolution(files / 'few.pth', size, ratio, config) == wanted


def save(path, model, cfg):
    """Write what a run writes: weights, and its config as text."""
    meta = dict(cfg=cfg if isinstance(cfg, str) else Config(cfg).pretty_text, mmengine_version='0.10.7')
    torch.save(dict(meta=meta, state_dict=prefixed(randomise(model).state_dict(), 'backbone.')), path)
    return path


def classifier(arch=SMALL):
    return XCiTClassifier(arch, num_classes=3, **BN)


def test_a_classifier_is_that_of_its_run(picture, tmp_path):
    """Of no published size, and with the weights of two models: norm over every token or one."""
    cfg, logits = read_config(TINY_CLS_CONFIG), []
    for tokens_norm in (False, True):
        cfg.model.backbone.arch.tokens_norm = tokens_norm
        torch.manual_seed(0)
        found = Classifier(save(tmp_path / 'a.pth', classifier(cfg.model.backbone.arch), cfg.pretty_text))
        assert (found.size, found.crop_ratio) == (32, 1.) and found.model.arch.tokens_norm is tokens_norm
        logits.append(found.logits(picture))
    assert not torch.allclose(*logits)


def test_size_and_normalisation_are_those_of_the_run(picture, tmp_path):
    backbone = small(type='mmpretrain.XCiTClassifier', num_classes=3, drop_path_rate=0.1, with_cp=True)
    path = save(tmp_path / 'xcit_384_dist.pth', classifier(), config_of(backbone, data_preprocessor=dict(mean=[9] * 3)))
    found = Classifier(path)
    assert (found.size, found.crop_ratio) == (64, 0.8) and resolution(path, 32, 0.5) == (32, 0.5)
    opened = open_model(path)
    assert (opened.mean, opened.std) == ((1, 2, 3), (4, 5, 6))
    config = write_config(tmp_path, backbone, dict(INPUTS, mean=[7., 8., 9.]),
                          [PIPELINE[0], dict(PIPELINE[1], crop_size=48)])
    other = Classifier(path, config=config)  # goes before it
    assert other.size == 48 and not torch.allclose(other.logits(picture), found.logits(picture))
    with pytest.raises(ConfigError, match='b.pth.*BGR'):
        open_model(save(tmp_path / 'b.pth', classifier(), config_of(small(), dict(mean=[1, 2, 3]))))


@pytest.mark.parametrize('scope, options', (
    ('mmseg.', dict(out_indices=(2, 5, 8, 11))), ('mmdet.', dict(norm_cfg=dict(type='GN', num_groups=2))),
    ('xcit_dense.models.backbone.', dict(out_strides=(8, 16), out_indices=(5, 11))),
    ('', dict(norm_cfg=dict(type='SyncBN', eps=0.1)))))
def test_a_dense_model_is_that_of_its_run(options, scope, tmp_path):
    model = XCiT(ARCH, **{**BN, **options})
    path = save(tmp_path / 'a.pth', model, config_of(dict(type=f'{scope}XCiT', arch=ARCH, **options)))
    found, images = open_model(path).model, torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        for level, wanted in zip(found(images), model.eval()(images), strict=True):
            assert torch.equal(level, wanted)
    assert Attention(path).blocks == tuple(i + 1 for i in model.out_indices)


@pytest.mark.parametrize('cfg, words', (
    (config_of(dict(type='mine.XCiTClassifier', arch=SMALL)), 'mine.XCiTClassifier.*--config'),
    (config_of(small(norm_cfg=dict(type='mine.Norm'))), 'mine.Norm.*--config'),
    (config_of(small(norm_cfg=dict(type='Conv2d'))), 'Conv2d.*--config'),
    (config_of(small(arch=dict(SMALL, depth='x'))), 'arch.depth.*--config'),
    (config_of(dict(type='XCiT', arch=SMALL)), 'does not fit the XCiT of the config in it.*--config')))
def test_models_that_need_the_config(cfg, words, tmp_path, monkeypatch):
    (tmp_path / 'mine.py').write_text('raise SystemExit("what a file names was imported")')
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(CheckpointError, match=f'(?s)a.pth.*{words}'):
        open_model(save(tmp_path / 'a.pth', classifier(), cfg))


@pytest.mark.parametrize('text, says', (
    ('model = 3\ndata_preprocessor = [4]\ntest_dataloader = "x"', True),
    ('test_dataloader = dict(dataset=dict(type="X", pipeline=[dict(type="ResizeEdge", scale="x")]))', True),
    ('data_preprocessor = dict(to_rgb=True)', False)))
def test_what_tells_nothing_is_taken_for_a_published_model(text, says, tmp_path, capsys):
    found = Classifier(save(tmp_path / 'a.pth', classifier(ARCH), text))
    assert (found.size, found.crop_ratio) == (224, 1.)
    assert ('WARNING' in (output := capsys.readouterr().out) and '--config' in output) is says


def test_mmpretrains_own_model_is_told_by_its_tensors(files, tmp_path):
    convert(files / 'few.pth', tmp_path / 'run.pth', 'mmpretrain')
    content = torch.load(tmp_path / 'run.pth')
    content['meta'] = dict(cfg=Config(config_of(dict(type='XCiT', patch_size=16, embed_dims=128))).pretty_text)
    torch.save(content, tmp_path / 'run.pth')
    assert Classifier(tmp_path / 'run.pth').size == 64


def test_a_config_needs_no_framework(tmp_path, monkeypatch):
    for name in ('mmpretrain', 'xcit_dense.for_mmpretrain'):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / 'a.pth'
    torch.save(XCiTClassifier(read_config(TINY_CLS_CONFIG).model.backbone.arch, num_classes=3).state_dict(), path)
    assert Classifier(path, config=TINY_CLS_CONFIG).size == 32


def test_a_model_of_ones_own_is_imported_by_the_config(tmp_path, monkeypatch):
    (tmp_path / 'module_of_a_model.py').write_text(
        'from mmengine.registry import MODELS\nfrom xcit_dense import XCiTClassifier\n'
        '@MODELS.register_module(force=True)\nclass ToldXCiT(XCiTClassifier):\n    pass\n')
    monkeypatch.syspath_prepend(tmp_path)
    config = write_config(tmp_path, dict(type='ToldXCiT', arch=SMALL),
                          custom_imports=dict(imports=['module_of_a_model']))
    found = open_model(save(tmp_path / 'a.pth', classifier(), config.read_text()), config).model
    assert type(found).__name__ == 'ToldXCiT'


@pytest.mark.parametrize('text, words', (
    ('model = dict(backbone=dict(type="ResNet"))', 'ResNet'),
    (Config(config_of(dict(type='XCiTClassifier', width=3))).pretty_text, 'width')))
def test_a_config_that_does_not_do_is_named(text, words, tmp_path):
    (tmp_path / 'config.py').write_text(text)
    with pytest.raises(ConfigError, match=f'config.py.*{words}'):
        open_model(save(tmp_path / 'a.pth', classifier(), 'x = 1'), tmp_path / 'config.py')
