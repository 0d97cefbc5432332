"""Images for predictions are read as the config reads its test data."""
import json
import struct
import warnings
import zlib

import cv2
import numpy as np
import pytest
from mmcv.transforms import BaseTransform, LoadImageFromFile
from mmengine import registry
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import init_default_scope
from mmseg.registry import TRANSFORMS
from PIL import Image

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.config.tasks import class_of
from xcit_dense.errors import DataError
from xcit_dense.predict.files import predict_files
from xcit_dense.predict.predictor import DetectionPredictor, SegmentationPredictor, build_predictor
from xcit_dense.predict.reading import ImageReader, picture_of


@pytest.mark.parametrize('options', (
    dict(backend_args=dict(backend='petrel')), dict(color_type='color_ignore_orientation'),
    dict(color_type='unchanged'), dict(color_type='grayscale'), dict(to_float32=True)), ids=str)
def test_files_and_arrays_are_what_the_loader_of_the_config_gives(options, photograph, tmp_path):
    init_default_scope('mmseg')
    path, plain = photograph(tmp_path / 'a.png'), tmp_path / 'plain.png'
    step = dict(type='LoadImageFromFile', **options)
    wanted = Compose([dict(step, backend_args=None)])(dict(img_path=str(path)))  # files of users are on disk
    reader = ImageReader(dict(pipeline=[step, dict(type='PackSegInputs')]))
    loaded = reader.load(path)
    picture = picture_of(loaded)
    assert picture.dtype == np.uint8 and picture.shape == (*wanted['ori_shape'], 3)
    array = np.asarray(Image.open(path))
    Image.fromarray(array).save(plain)  # without the EXIF tag
    for got, by_loader in ((loaded, wanted), (reader.load_array(array), reader.load(plain))):
        assert np.array_equal(got['img'], by_loader['img']) and got['img'].dtype == by_loader['img'].dtype
        assert got['img_shape'] == by_loader['img_shape'] and got['ori_shape'] == by_loader['ori_shape']


@pytest.mark.parametrize('highest, color_type, warned', (
    (16383, 'color', True), (16384, 'color', False), (4095, 'unchanged', False)))
def test_images_that_lose_most_of_their_values_are_warned_of(highest, color_type, warned, tmp_path):
    cv2.imwrite(str(tmp_path / 'a.png'), np.full((4, 4), highest, np.uint16))
    with warnings.catch_warnings(record=True) as found:
        ImageReader(dict(pipeline=[dict(type='LoadImageFromFile', color_type=color_type)])).read(tmp_path / 'a.png')
    assert ['16-bit' in str(warning.message) for warning in found] == [True] * warned


def test_pil_images_of_16_bits_are_read_with_all_channels():
    reader = ImageReader(dict(pipeline=[dict(type='LoadImageChannels', channels=1)]))
    assert reader.open(Image.fromarray(np.array([[1, 4095]], np.uint16)))['img'].tolist() == [[[1], [4095]]]
    reader = ImageReader(dict(pipeline=[dict(type='LoadImageChannels', channels=3)]))
    colours = Image.fromarray(np.array([[[250, 0, 0], [0, 250, 9]]], np.uint8)).quantize(2)
    assert reader.open(colours)['img'].tolist() == [[[250, 0, 0], [0, 250, 9]]]


class Mine(BaseTransform):
    def transform(self, results):
        return dict(results, mine=results.get('mine', 0) + 1)


class Loader(LoadImageFromFile):
    def transform(self, results):
        assert results['mine'] == 1
        return super().transform(results)


def test_annotations_are_not_read(photograph, tmp_path, monkeypatch):
    init_default_scope('mmseg')
    monkeypatch.setitem(TRANSFORMS.module_dict, 'Mine', Mine)
    names = 'mmseg.LoadAnnotations', 'mmdet.LoadProposals', 'mmcv.LoadAnnotations', 'LoadDepthAnnotation', 'Mine'
    reader = ImageReader(dict(pipeline=[dict(type=Mine), dict(type=Loader), *(dict(type=name) for name in names)]))
    read = reader.read(photograph(tmp_path / 'a.png'))
    assert read.data['mine'] == 2 and read.picture.shape == (40, 24, 3)


@pytest.mark.parametrize('shape, kind', (((5, 7), np.uint8), ((5, 7, 1), np.uint16), ((5, 7, 4), np.float32)))
def test_pictures_of_any_array(shape, kind):
    image = np.random.default_rng(0).uniform(0, 250, shape).astype(kind)
    image[0, 0] = 0
    wide = image.astype(np.float64) * 100 - 3000
    first = image if image.ndim == 2 else image[..., 2 if shape[2] > 2 else 0]
    picture = picture_of(dict(img=image))
    assert picture.shape == (5, 7, 3) and (picture[..., 0] == first.round()).all()  # RGB, of OpenCV's BGR
    image[0, 0] = 255  # it needs no other range either
    assert (picture_of(dict(img=image))[1:] == picture[1:]).all()
    for scaled in (picture_of(dict(img=wide)), picture_of(dict(img=wide + 3001)), picture_of(dict(img=image - 300.))):
        assert scaled.dtype == np.uint8 and scaled.min() == 0 and scaled.max() == 255


def huge(path):
    """A PNG that says to have more pixels than OpenCV takes."""
    data = bytearray(cv2.imencode('.png', np.zeros((1, 1, 3), np.uint8))[1].tobytes())
    data[16:24] = struct.pack('>II', 60000, 60000)
    data[29:33] = struct.pack('>I', zlib.crc32(data[12:29]))
    path.write_bytes(data)
    return path


def test_an_image_that_opencv_or_the_pipeline_does_not_take_ends_nothing(trained, photograph, tmp_path):
    predictor = build_predictor(load_config(TINY_CONFIG, pretrained=False), trained[0])
    Image.new('RGB', (9000, 1)).save(tmp_path / '0.png')  # resized, it has no height
    paths = [tmp_path / '0.png', huge(tmp_path / '1.png'), photograph(tmp_path / '2.png')]
    with pytest.raises(DataError, match='2 of 3 images could not be predicted(.|\n)*0.png cannot be read: (.|\n)*'
                       '1.png has more pixels than OpenCV .* Cut it into several files'):
        predict_files(predictor, tmp_path, paths, tmp_path / 'out')
    assert (tmp_path / 'out/2.jpg').is_file()


def changed(node, change):
    """A copy of a config in which every ``type`` is what a function returns for it."""
    if isinstance(node, dict):
        return {key: change(value) if key == 'type' and isinstance(value, str) else changed(value, change)
                for key, value in node.items()}
    return type(node)(changed(part, change) for part in node) if isinstance(node, (list, tuple)) else node


def as_class(name):
    """The class of a name, as pure-Python configs have it."""
    found = (class_of(name, root) for root in (
        registry.MODELS, registry.DATASETS, registry.TRANSFORMS, registry.VISUALIZERS, registry.TASK_UTILS))
    return next(filter(None, found), name)


SCOPED = dict(LoadImageFromFile='mmcv.LoadImageFromFile', LoadAnnotations='mmdet.LoadAnnotations')
FORMS = dict(
    classes=lambda cfg: Config(dict(changed(cfg.to_dict(), as_class), default_scope=None)),
    scoped=lambda cfg: Config(changed(cfg.to_dict(), lambda name: SCOPED.get(name, name))),
    concatenated=lambda cfg: cfg.test_dataloader.merge(dict(dataset=dict(
        _delete_=True, type='ConcatDataset', datasets=[cfg.test_dataloader.dataset] * 2))),
    without_test_data=lambda cfg: cfg.merge_from_dict(dict(test_dataloader=None, test_evaluator=None, test_cfg=None,
                                                           visualizer=None)))


@pytest.mark.parametrize('form, kind', list(zip(FORMS, 2 * [DetectionPredictor, SegmentationPredictor], strict=True)))
def test_configs_of_every_form(kind, form, trained, trained_segmentor, path, tmp_path):
    detects = kind is DetectionPredictor
    config, work_dir = (TINY_CONFIG, trained[0]) if detects else (TINY_SEG_CONFIG, trained_segmentor[0])
    init_default_scope('mmdet' if detects else 'mmseg')
    other, results = load_config(config, pretrained=False), []
    for cfg in (load_config(config, pretrained=False), FORMS[form](other) or other):
        cfg.model.test_cfg.get('rcnn', {})['score_thr'] = 0
        predictor = build_predictor(cfg, work_dir)
        assert type(predictor) is kind
        predict_files(predictor, path.parent, [path], tmp_path / f'{len(results)}')
        results.append({file.name: file.read_bytes() for file in (tmp_path / f'{len(results)}').rglob('*.[jp]*')
                        if file.suffix in ('.json', '.png') and file.name[0] != '.'})
    assert results[0] == results[1] and results[0].keys() == (
        {'results.json', 'classes.json'} if detects else {f'{path.stem}.png', 'classes.json'})
    assert not detects or json.loads(results[0]['results.json'])


def test_a_config_without_data_to_test_says_so(trained, demo_data, tmp_path):
    config = tmp_path / 'own.py'
    config.write_text(f"_base_ = '{TINY_CONFIG}'\n" + ''.join(
        f'{name}_{part} = None\n' for name in ('test', 'val') for part in ('dataloader', 'evaluator', 'cfg')))
    for tool, rest in (('predict.py', (demo_data / 'val2017', '--out', tmp_path / 'out')), ('test.py', ())):
        done = run_tool(tool, config, trained[0], *rest, check=False, cwd=tmp_path)
        assert done.returncode == 1 and 'test_dataloader' in done.message and 'Traceback' not in done.stdout, tool
