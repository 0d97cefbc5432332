"""Images for predictions are read as the config reads its test data."""
import json
import struct
import zlib

import cv2
import numpy as np
import pytest
import torch
from mmcv.transforms import BaseTransform, LoadImageFromFile
from mmengine import registry
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.registry import MODELS, init_default_scope
from mmseg.registry import TRANSFORMS
from PIL import Image

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.config.check.keys import class_of
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import set_classes
from xcit_dense.errors import DataError
from xcit_dense.predict.files import predict_files
from xcit_dense.predict.predictor import DetectionPredictor, SegmentationPredictor, build_predictor
from xcit_dense.predict.reading import ImageReader, picture_of


@pytest.fixture
def scope():
    init_default_scope('mmseg')


def photograph(path, turn=6):
    """An image of 40 x 24 pixels whose EXIF mark asks for a turn."""
    pixels = np.random.default_rng(0).integers(0, 255, (24, 40, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = turn
    Image.fromarray(pixels).save(path, exif=exif)
    return path


@pytest.mark.parametrize('options', (
    {}, dict(color_type='color_ignore_orientation'), dict(color_type='unchanged'), dict(color_type='grayscale'),
    dict(imdecode_backend='pillow'), dict(to_float32=True)), ids=str)
def test_an_image_is_what_the_loader_of_the_config_gives(options, scope, tmp_path):
    path = photograph(tmp_path / 'a.png')
    step = dict(type='LoadImageFromFile', **options)
    wanted = Compose([step])(dict(img_path=str(path)))
    loaded = ImageReader(dict(pipeline=[step, dict(type='PackSegInputs')])).load(path, 7)
    assert loaded['img'].dtype == wanted['img'].dtype and (loaded['img'] == wanted['img']).all()
    assert loaded['ori_shape'] == wanted['ori_shape'] and loaded['img_id'] == 7
    picture = picture_of(loaded)
    assert picture.dtype == np.uint8 and picture.shape == (*wanted['ori_shape'], 3)


def test_annotations_are_not_read_and_backends_are_those_of_the_data_set(scope, tmp_path):
    class Mine(BaseTransform):
        def transform(self, results):
            return dict(results, mine=True)

    class MineToo(LoadImageFromFile):
        def transform(self, results):
            assert results.pop('before')
            return super().transform(results)

    class Before(BaseTransform):
        def transform(self, results):
            return dict(results, before=True)

    TRANSFORMS.register_module(module=Mine, force=True)
    try:
        reader = ImageReader(dict(pipeline=[
            dict(type=Before), dict(type=MineToo, backend_args=dict(backend='petrel')),
            dict(type='mmseg.LoadAnnotations'),
            dict(type='mmdet.LoadAnnotations', with_bbox=True), dict(type='mmcv.LoadAnnotations'),
            dict(type='LoadDepthAnnotation'), dict(type='Mine')]))
        read = reader.read(photograph(tmp_path / 'a.png'), 1)
        assert read.data['mine'] and read.id == 1 and read.picture.shape == (40, 24, 3)
    finally:
        TRANSFORMS.module_dict.pop('Mine')


@pytest.mark.parametrize('shape, kind', (((5, 7), np.uint8), ((5, 7, 1), np.uint16), ((5, 7, 3), np.float32),
                                         ((5, 7, 4), np.uint8), ((5, 7, 8), np.float64)))
def test_pictures_of_any_array(shape, kind):
    image = np.random.default_rng(0).uniform(0, 250, shape).astype(kind)
    wide = image.astype(np.float64) * 100 - 3000
    first = image if image.ndim == 2 else image[..., 2 if shape[2] > 2 else 0]
    picture = picture_of(dict(img=image))
    assert picture.shape == (5, 7, 3) and (picture[..., 0] == first.round()).all()  # RGB, of OpenCV's BGR
    scaled = picture_of(dict(img=wide))
    assert scaled.dtype == np.uint8 and scaled.min() < 5 and scaled.max() > 200


def test_a_grey_model_gets_grey_images(trained_segmentor, tmp_path):
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False)
    cfg.test_dataloader.dataset.pipeline[0].update(color_type='grayscale')
    cfg.model.data_preprocessor.update(mean=[127.], std=[60.], bgr_to_rgb=False)
    cfg.model.backbone.in_channels = 1
    set_classes(cfg, list('abcdef'))
    init_default_scope('mmseg')
    model = MODELS.build(cfg.model)
    torch.save(dict(state_dict=model.state_dict(), meta=dict(dataset_meta=dict(classes=list('abcdef')))),
               tmp_path / 'grey.pth')
    folder = tmp_path / 'images'
    folder.mkdir()
    predictor = build_predictor(cfg, tmp_path / 'grey.pth')
    predict_files(predictor, folder, [photograph(folder / 'a.png')], tmp_path / 'out')
    assert cv2.imread(str(tmp_path / 'out/a.jpg')).shape == (40, 24, 3)  # turned


def huge(path):
    """A PNG that says to have more pixels than OpenCV takes."""
    def chunk(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))

    path.write_bytes(b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', struct.pack('>IIBBBBB', 60000, 60000, 8, 2, 0, 0, 0))
                     + chunk(b'IDAT', zlib.compress(b'0')) + chunk(b'IEND', b''))
    return path


def test_an_image_that_opencv_or_the_pipeline_does_not_take_ends_nothing(trained, tmp_path):
    predictor = build_predictor(load_config(TINY_CONFIG, pretrained=False), trained[0])
    Image.new('RGB', (9000, 1)).save(tmp_path / '0.png')  # resized, it has no height
    paths = [tmp_path / '0.png', huge(tmp_path / '1.png'), photograph(tmp_path / '2.png')]
    with pytest.raises(DataError, match='2 of 3 images could not be predicted(.|\n)*0.png: (.|\n)*1.png: .*pixels'):
        predict_files(predictor, tmp_path, paths, tmp_path / 'out')
    assert (tmp_path / 'out/2.jpg').is_file()


def with_classes(node):
    """A config as a pure-Python one has it: classes in the place of their names."""
    if isinstance(node, dict):
        node = {key: with_classes(value) for key, value in node.items()}
        if isinstance(node.get('type'), str):
            node['type'] = next(filter(None, (class_of(node['type'], root) for root in (
                registry.MODELS, registry.DATASETS, registry.TRANSFORMS, registry.VISUALIZERS, registry.TASK_UTILS))),
                node['type'])
    elif isinstance(node, (list, tuple)):
        node = type(node)(with_classes(part) for part in node)
    return node


def scoped(node):
    if isinstance(node, dict):
        return {key: ('mmcv.LoadImageFromFile' if value == 'LoadImageFromFile' else
                      'mmdet.LoadAnnotations' if value == 'LoadAnnotations' else scoped(value))
                for key, value in node.items()}
    return type(node)(map(scoped, node)) if isinstance(node, (list, tuple)) else node


FORMS = dict(
    classes=lambda cfg: Config(dict(with_classes(cfg.to_dict()), default_scope=None)),
    scoped=lambda cfg: Config(scoped(cfg.to_dict())),
    concatenated=lambda cfg: cfg.test_dataloader.merge(dict(dataset=dict(
        _delete_=True, type='ConcatDataset', datasets=[cfg.test_dataloader.dataset] * 2))),
    without_test_data=lambda cfg: cfg.merge_from_dict(dict(test_dataloader=None, test_evaluator=None, test_cfg=None,
                                                           visualizer=None)))


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG), ids=('det', 'seg'))
def test_configs_of_every_form(config, form, trained, trained_segmentor, demo_data, tmp_path):
    """The predictions are the same, to the byte."""
    detector = config == TINY_CONFIG
    work_dir = (trained if detector else trained_segmentor)[0]
    plain = load_config(config, pretrained=False)
    init_default_scope('mmdet' if detector else 'mmseg')
    other = FORMS[form](load_config(config, pretrained=False)) or load_config(config, pretrained=False)
    if form in ('concatenated', 'without_test_data'):
        FORMS[form](other)
    root = demo_data / 'val2017'
    for name, cfg in (('plain', plain), ('other', other)):
        cfg.model.test_cfg.get('rcnn', {})['score_thr'] = 0
        predictor = build_predictor(cfg, work_dir)
        assert isinstance(predictor, DetectionPredictor if detector else SegmentationPredictor)
        predict_files(predictor, root, sorted(root.iterdir())[:1], tmp_path / name)
    names = {path.relative_to(tmp_path / 'plain') for path in (tmp_path / 'plain').rglob('*.[jp]*')}
    assert len(names) >= 3
    for name in names:
        if name.suffix in ('.json', '.png') and name.name[0] != '.':
            assert (tmp_path / 'plain' / name).read_bytes() == (tmp_path / 'other' / name).read_bytes()
    if detector:
        assert json.loads((tmp_path / 'plain/results.json').read_text())


def test_a_config_without_data_to_test_says_so(trained, demo_data, tmp_path):
    config = tmp_path / 'own.py'
    config.write_text(f"_base_ = '{TINY_CONFIG}'\n" + ''.join(
        f'{name}_{part} = None\n' for name in ('test', 'val') for part in ('dataloader', 'evaluator', 'cfg')))
    for tool, rest in (('predict.py', (demo_data / 'val2017', '--out', tmp_path / 'out')), ('test.py', ())):
        done = run_tool(tool, config, trained[0], *rest, check=False, cwd=tmp_path)
        assert done.returncode == 1 and 'test_dataloader' in done.message and 'Traceback' not in done.stdout, tool
