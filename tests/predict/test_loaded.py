"""A model loaded from Python: what it takes, what it gives, and that it is what the tool `predict` writes."""
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image
from pycocotools import mask as mask_api

import xcit_dense
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.errors import ConfigError, DataError, SetupError
from xcit_dense.predict.tiles import scores_of
from xcit_dense.weights import best_checkpoint

pytestmark = pytest.mark.filterwarnings('ignore')
CLASSES = ('disc', 'square', 'triangle', 'star', 'cross')
TILES = pytest.mark.parametrize('tiles', ({}, dict(tile=40, overlap=0.4)), ids=('whole', 'tiles'))


@pytest.fixture
def array(path):
    return cv2.imread(str(path))[..., ::-1]


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ('boxes', 'scores', 'labels', 'masks'))


def predict(*args, **tiles):
    run_tool('predict.py', *args, *(word for name, value in tiles.items() for word in (f'--{name}', value)))


def check_picture(found, file, array):
    """What is drawn is what the tool wrote as JPEG."""
    drawn = found.draw()
    assert drawn.shape == array.shape and drawn.dtype == np.uint8 and (drawn != array).any()
    assert cv2.imencode('.jpg', drawn[..., ::-1])[1].tobytes() == file.read_bytes()


@TILES
def test_objects_are_those_of_the_tool(tiles, detector, trained, path, array, tmp_path):
    predict(TINY_CONFIG, trained[0], path, '--out', tmp_path, '--score-thr', 0, **tiles)
    found, wanted = detector(path, **tiles), json.loads((tmp_path / 'results.json').read_text())
    assert len(found) == len(wanted) > 0 and (np.diff(found.scores) <= 0).all()
    assert found.boxes.dtype == found.scores.dtype == np.float32 and found.masks.dtype == bool
    assert found.boxes.shape == (len(found), 4) and found.masks.shape == (len(found), *array.shape[:2])
    corners = found.boxes.astype(float).tolist()
    assert [record['bbox'] for record in wanted] == [[x1, y1, x2 - x1, y2 - y1] for x1, y1, x2, y2 in corners]
    assert [record['score'] for record in wanted] == found.scores.tolist()
    assert [record['category_name'] for record in wanted] == list(found.names)
    assert detector.classes == CLASSES and found.names == tuple(CLASSES[label] for label in found.labels)
    assert all((mask_api.decode(record['segmentation']) == mask).all()
               for record, mask in zip(wanted, found.masks, strict=True))
    check_picture(found, tmp_path / path.name, array)


@TILES
def test_labels_are_those_of_the_tool(tiles, segmentor, trained_segmentor, path, array, tmp_path):
    predict(TINY_SEG_CONFIG, trained_segmentor[0], path, '--out', tmp_path, **tiles)
    written = cv2.imread(str(tmp_path / f'labels/{path.stem}.png'), cv2.IMREAD_UNCHANGED)
    found = segmentor(path, **tiles)
    assert written.dtype == np.uint8 and np.array_equal(found.labels, written)
    assert found.labels.shape == found.scores.shape == array.shape[:2] and found.labels.dtype == np.int64
    assert 1 / 6 <= found.scores.min() <= found.scores.max() <= 1
    assert segmentor.classes == ('background', *CLASSES) and segmentor(path, scores=False, **tiles).scores is None
    check_picture(found, tmp_path / path.name, array)


def test_scores_are_the_softmax(segmentor, path):
    found = segmentor(path)
    wanted = segmentor._predictor.samples([segmentor._predictor.read(path)])[0].seg_logits.data.softmax(0).max(0)
    assert np.array_equal(found.labels, wanted.indices.numpy())
    assert np.allclose(found.scores, wanted.values.numpy(), rtol=1e-6)
    logits, labels = torch.tensor([[[0.2, 0.9]]]), torch.tensor([[[0, 1]]])
    assert np.allclose(scores_of(logits, labels), [[0.8, 0.9]])


@pytest.mark.parametrize('kind', ('text', 'array', 'view', 'pil', 'png', 'grey', 'grey array', 'alpha', 'exif'))
def test_an_image_in_any_form_is_the_file(kind, detector, segmentor, array, photograph, tmp_path):
    """RGB, with channels that are not alike, so that another order would show."""
    file = tmp_path / 'image.png'
    picture = Image.fromarray(np.ascontiguousarray(array))
    if 'grey' in kind:
        picture = picture.convert('L')
    elif kind == 'alpha':
        picture.putalpha(Image.fromarray(array[..., 0].copy()))
    if kind == 'exif':
        photograph(file, array)
        assert segmentor(file).labels.shape == array.shape[1::-1]
    else:
        picture.save(file)
    given = {'text': str(file), 'array': np.ascontiguousarray(array), 'view': array, 'png': Image.open(file),
             'exif': Image.open(file), 'grey array': np.asarray(picture)}.get(kind, picture)
    assert same(detector(given), detector(file))
    assert np.array_equal(segmentor(given).labels, segmentor(file).labels)


def test_lists_batches_and_thresholds(detector, path, array):
    alone, strip = detector(path), array[:20]
    several = detector([path, strip, array], batch_size=2)
    assert detector([]) == []
    for found, wanted in zip(several, (alone, detector(strip), alone), strict=True):
        assert len(found) == len(wanted) and np.abs(found.scores - wanted.scores).max() < 1e-5
    middle = float(alone.scores[len(alone) // 2])
    fewer = detector(path, threshold=middle)
    assert (fewer.scores >= middle).all() and len(fewer) == (alone.scores >= middle).sum() < len(alone)
    tiles = detector(path, threshold=middle, tile=40)
    assert (tiles.scores >= middle).all() and 0 < len(tiles) < len(detector(path, tile=40))
    none = detector(path, threshold=1.1)
    assert len(none) == 0 and none.boxes.shape == (0, 4) and none.names == () and none.draw().shape == array.shape
    with pytest.raises(ConfigError, match='batch_size'):
        detector(path, batch_size=0)


def test_to_supervision(detector, path, monkeypatch):
    pytest.importorskip('supervision')
    found, tiles = detector(path), detector(path, tile=40)
    theirs = found.to_supervision()
    assert list(theirs.data['class_name']) == list(found.names) and np.array_equal(theirs.class_id, found.labels)
    assert np.array_equal(theirs.xyxy, found.boxes) and np.array_equal(theirs.confidence, found.scores)
    assert np.array_equal(theirs.mask, found.masks) and np.array_equal(tiles.to_supervision().mask, tiles.masks)
    assert len(detector(path, threshold=1.1).to_supervision()) == 0
    monkeypatch.setitem(sys.modules, 'supervision', None)
    with pytest.raises(SetupError, match='pip install supervision'):
        found.to_supervision()


@pytest.mark.parametrize('visualizer', ({}, {'visualizer.alpha': 0.5}), ids=('own look', "mmdet's"))
def test_results_and_models_in_threads(visualizer, detector, segmentor, trained, path):
    """Drawn again a result is the same picture, and the random numbers of the caller stay."""
    if visualizer:
        detector = xcit_dense.load(TINY_CONFIG, trained[0], cfg_options=visualizer, threshold=0.2)
    np.random.seed(3)
    state = np.random.get_state()[1].copy()
    wanted, regions = detector(path), segmentor(path)
    picture = wanted.draw()
    assert np.array_equal(regions.draw(), regions.draw())
    assert np.array_equal(wanted.draw(), picture) and np.array_equal(np.random.get_state()[1], state)
    with ThreadPoolExecutor(3) as pool:
        for found, drawn, others in pool.map(lambda _: (detector(path), wanted.draw(), segmentor(path)), range(6)):
            assert same(found, wanted) and np.array_equal(drawn, picture)
            assert np.array_equal(others.labels, regions.labels)


def test_results_travel_without_the_model(detector, segmentor, path):
    for found in (detector(path), segmentor(path), detector(path, tile=40)):
        data = pickle.dumps(found)
        there = pickle.loads(data)
        assert b'XCiT' not in data and b'backbone' not in data and np.array_equal(there.draw(), found.draw())
        arrays = {name: value for name, value in vars(found).items() if name != '_draw'}
        assert all(np.array_equal(getattr(there, name), value) for name, value in arrays.items())
        assert found != there and len({found, found}) == 1 and len(repr(found)) < 160
    assert repr(detector(path)).startswith('<') and '0 objects' in repr(detector(path, threshold=2))


@pytest.mark.parametrize('image, words', (
    (np.zeros((4, 4, 4), np.uint8), r'\(H, W, 3\).*\(4, 4, 4\)'), (np.zeros((4, 4, 3)), 'uint8.*255'),
    (np.zeros(4, np.uint8), 'uint8'), (np.zeros((0, 4, 3), np.uint8), '0, 4'),
    (np.zeros((2, 4, 4, 3), np.uint8), 'a list of them'), (Image.new('I;16', (4, 4)), 'LoadImageChan'),
    (Image.new('F', (4, 4)), 'mode F'),
    ((path for path in 'ab'), 'list or tuple.*generator'), (b'GIF', 'bytes'), (['a.jpg'], r'list')))
def test_what_is_no_image(image, words, detector):
    with pytest.raises(DataError, match=words):
        detector([image] if isinstance(image, list) else image)


def test_a_config_in_any_form(trained, path, detector):
    work_dir, wanted = trained[0], detector(path)
    cfg = Config.fromfile(work_dir / 'maskrcnn_xcit_tiny.py')
    for config in (work_dir / 'maskrcnn_xcit_tiny.py', str(work_dir), cfg):
        assert same(xcit_dense.load(config, best_checkpoint(work_dir), threshold=0, device='cpu')(path), wanted)
    options = {'model.test_cfg.rcnn.max_per_img': 2}
    assert [len(xcit_dense.load(config, work_dir, threshold=0, cfg_options=options)(path))
            for config in (TINY_CONFIG, cfg)] == [2, 2]
    assert cfg.model.test_cfg.rcnn.max_per_img == 50


@pytest.mark.parametrize('config, words', (
    ('maskrcnn_xcit_n12_p16_small', 'no work dir'), ('gone', 'no work dir .*gone'), (TINY_CLS_CONFIG, 'classify')))
def test_what_cannot_be_loaded(config, words, trained):
    with pytest.raises(ConfigError, match=words):
        xcit_dense.load(config, *([trained[0]] if config == TINY_CLS_CONFIG else []))


def test_options_that_a_model_does_not_have(trained, trained_segmentor):
    for run, options in ((trained_segmentor, dict(threshold=0.5)), (trained, dict(dtype='float16')),
                         (trained, dict(runtime='openvino'))):
        with pytest.raises(ConfigError, match=next(iter(options))):
            xcit_dense.load(run[0], **options)
    with pytest.raises(RuntimeError, match='nowhere'):
        xcit_dense.load(trained[0], device='nowhere')
