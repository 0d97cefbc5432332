"""Exported files run without torch: what comes out, as OpenCV resizes and mmdet pastes masks to the last bit, and what
is said of a file or an image that does not fit."""
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from mmcv.transforms import LoadImageFromFile
from mmdet.datasets.transforms import Resize
from mmdet.models.roi_heads.mask_heads.fcn_mask_head import _do_paste_mask
from PIL import Image

from helpers.onnx_files import write_backbone, write_detector, write_segmentor
from xcit_dense import runtime
from xcit_dense.export.finishing import add_checksum
from xcit_dense.runtime import ImageError, Model, ModelError, paste_masks, resize_linear

#: The second is tested where it is installed.
RUNTIMES = ('onnxruntime', 'openvino')
DETS = np.array([[.25, .1, .75, .5, .9], [0, 0, 1, 1, .4], [.5, .5, 1, 1, .2], [0, 0, 0, 0, 0]], np.float32)
LABELS = np.array([2, 0, 1, -1])
MASKS = np.stack([np.full((28, 28), value, np.float32) for value in (1, 1, 0.6, 0)])
KEEP = dict(resize=dict(rule='keep_ratio', scale=[64, 40]))
KINDS = {'usual': (.0, 1., 60.), 'reaching outside': (-.1, 1.1, 200.), 'tiny': (0., 1., .5),
         'without extent': (0., 1., 0.), 'huge': (.3, .7, 5000.)}


@pytest.fixture
def picture():
    """80 x 120: red at the left, blue at the right of column 90."""
    image = np.zeros((80, 120, 3), np.uint8)
    image[:, :90, 0] = image[:, 90:, 2] = 200
    return image


@pytest.fixture(params=RUNTIMES)
def opened(request):
    """A function that opens a file."""
    pytest.importorskip(request.param)
    return lambda path: Model(path, request.param, threads=1)


@pytest.fixture(params=(False, True))
def with_and_without_opencv(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(runtime, 'cv2', None)


@pytest.fixture
def segmentor(tmp_path):
    return write_segmentor(tmp_path / 'modèle ö.onnx', **KEEP)


def test_objects_in_pixels_of_the_image(opened, tmp_path, picture):
    """Which is resized to a half of its width and a quarter of its height."""
    resize = dict(rule='fixed', size=[60, 20])
    model = opened(write_detector(tmp_path / 'm.onnx', DETS, LABELS, MASKS, num=3, resize=resize))
    found = model(picture)
    assert model.prepare(picture).shape == (20, 60, 3)
    np.testing.assert_allclose(found.boxes, [[30, 8, 90, 40], [0, 0, 120, 80]], atol=1e-4)
    assert found.scores.tolist() == pytest.approx([.9, .4]) and found.boxes.dtype == found.scores.dtype == np.float32
    assert found.labels.tolist() == [2, 0] and found.labels.dtype == np.int64 and found.names == ('blue', 'red')
    assert len(found) == 2 and found.masks.shape == (2, 80, 120) and found.masks.dtype == bool
    inside = np.zeros((80, 120), bool)
    inside[8:40, 30:90] = True
    assert np.array_equal(found.masks[0], inside) and found.masks[1].mean() > .99
    assert len(model(picture, threshold=np.float32(.4))) == 2
    assert len(model(picture, threshold=0.)) == 3  # the fourth is none
    assert len(model(picture, threshold=.95)) == 0 and model(picture, threshold=.95).masks.shape == (0, 80, 120)
    assert model.classes == ('red', 'green', 'blue') and model.task == 'detection'
    assert model.metadata['checkpoint'] == 'tiny.pth' and model.metadata['checkpoint_sha256'] == '12' * 32


def test_objects_without_masks_and_of_a_batch(opened, tmp_path, picture):
    model = opened(write_detector(tmp_path / 'm.onnx', DETS, LABELS, num=0))
    found = model(picture)
    assert len(found) == 0 and found.boxes.shape == (0, 4) and found.names == () and found.masks is None
    model = opened(write_detector(tmp_path / 'n.onnx', DETS, LABELS))
    outputs = model.run(np.stack([picture] * 3))
    assert outputs['dets'].shape == (3, 4, 5) and outputs['num'].tolist() == [4] * 3
    model = opened(write_detector(tmp_path / 'o.onnx', DETS, LABELS, MASKS, mask_threshold=.7))
    assert model(picture, threshold=.1).masks.any((1, 2)).tolist() == [True, True, False]
    outputs = {key: np.concatenate([values * 0, values]) for key, values in model.run(picture[None]).items()}
    second, wanted = model.objects(outputs, (80, 120), (80, 120), .3, place=1), model(picture)
    assert all(np.array_equal(getattr(second, key), value) for key, value in vars(wanted).items()) and len(wanted) == 2


def test_labels_have_the_size_of_the_image_or_that_which_is_asked_for(opened, segmentor, tmp_path, picture):
    model = opened(segmentor)
    found = model(picture)
    assert found.labels.shape == found.scores.shape == (80, 120) and found.labels.dtype == np.uint8
    assert (found.labels[:, :88] == 0).all() and (found.labels[:, 92:] == 2).all()
    assert found.scores[0, 0] == pytest.approx(np.exp(2) / (np.exp(2) + 2))
    batch = np.stack([model.prepare(picture)] * 2)
    assert model.run(batch)['labels'].shape == (2, 40, 60)
    assert model.run(batch, size=(7, 9))['labels'].shape == (2, 7, 9)
    without = opened(write_segmentor(tmp_path / 'n.onnx', scores=False))
    assert without(picture).scores is None and without(picture).labels.shape == (80, 120)


def test_levels_of_a_backbone_and_arrays_that_a_file_does_not_take(opened, segmentor, tmp_path):
    model = opened(write_backbone(tmp_path / 'm.onnx'))
    images = np.random.default_rng(0).random((2, 3, 8, 6), np.float32)
    levels = model.run(images)
    assert list(levels) == ['level0', 'level1'] and np.array_equal(levels['level0'], 2 * images)
    assert levels['level1'].shape == (2, 3, 4, 3)
    with pytest.raises(ModelError, match='backbone'):
        model(np.zeros((8, 6, 3), np.uint8))
    for wrong in (images[0], images.transpose(0, 2, 3, 1), images.astype(np.float64)):
        with pytest.raises(ImageError, match='float32.*3, H, W'):
            model.run(wrong)
    pixels = np.zeros((1, 8, 6, 3), np.uint8)
    for wrong in (pixels[0], pixels.transpose(0, 3, 1, 2), pixels.astype(np.float32)):
        with pytest.raises(ImageError, match='uint8.*H, W, 3'):
            opened(segmentor).run(wrong)


def test_one_model_is_called_from_several_threads(opened, segmentor):
    model = opened(segmentor)
    images = np.random.default_rng(0).integers(0, 256, (10, 30, 40, 3), np.uint8)
    images = [image[:20 + number] for number, image in enumerate(images)] * 4
    with ThreadPoolExecutor(8) as pool:
        for found, image in zip(pool.map(model, images), images, strict=True):
            assert np.array_equal(found.labels, model(image).labels)


def test_images_of_any_kind_are_read_alike(segmentor, tmp_path, picture, monkeypatch):
    """Without OpenCV and Pillow only arrays are read."""
    Image.fromarray(picture).save(tmp_path / 'grün.png')
    grey = picture[..., 0]
    for wanted, images in (
            (picture, (str(tmp_path / 'grün.png'), tmp_path / 'grün.png', Image.fromarray(picture),
                       Image.fromarray(picture).convert('RGBA'), picture[::1, :, ::-1][..., ::-1])),
            (np.stack([grey] * 3, 2), (grey, grey[..., None], Image.fromarray(grey)))):
        assert all(np.array_equal(Model(segmentor).read(image), wanted) for image in images)
    monkeypatch.setattr(runtime, 'cv2', None)
    monkeypatch.setitem(sys.modules, 'PIL.Image', None)
    with pytest.raises(ModelError, match='pip install pillow'):
        Model(segmentor)(tmp_path / 'grün.png')
    assert Model(segmentor)(picture).labels.shape == (80, 120)


@pytest.mark.parametrize('turns', (True, False))
def test_a_photo_is_turned_where_the_config_turns_it(turns, with_and_without_opencv, tmp_path, picture):
    model = Model(write_segmentor(tmp_path / 'm.onnx', turns=turns))
    exif = Image.Exif()
    exif[0x112] = 6  # a quarter to the right
    Image.fromarray(picture).save(tmp_path / 'photo.jpg', exif=exif, quality=95)
    wanted = np.rot90(picture, -1) if turns else picture
    for image in (tmp_path / 'photo.jpg', Image.open(tmp_path / 'photo.jpg')):
        found = model.read(image)
        assert found.shape == wanted.shape and np.abs(found.astype(int) - wanted)[::8, ::8].mean() < 8


@pytest.mark.parametrize('image, words', (
    ('nowhere.jpg', 'no image .*nowhere.jpg'), ([1, 2], 'got list'), (np.zeros((4, 4, 3)), 'uint8 .*float64'),
    (np.zeros((1, 4, 4, 3), np.uint8), r'\(1, 4, 4, 3\)'), (np.zeros((4, 4, 4), np.uint8), r'\(4, 4, 4\)'),
    (np.zeros((0, 4, 3), np.uint8), r'\(0, 4, 3\)'), (Image.new('I;16', (4, 4)), 'I;16'),
    (Image.new('F', (4, 4)), 'mode F'), (np.zeros((1, 4000, 3), np.uint8), 'narrow')))
def test_what_is_no_image(image, words, segmentor):
    with pytest.raises(ImageError, match=words):
        Model(segmentor)(image)


def test_an_image_file_that_is_damaged(with_and_without_opencv, segmentor, tmp_path):
    for content in (b'', b'no image', b'\x89PNG\r\n\x1a\n\0\0', b'\xff\xd8\xff\xe0\0\x10JFIF'):
        (tmp_path / 'x.jpg').write_bytes(content)
        with pytest.raises(ImageError, match='x.jpg cannot be read'):
            Model(segmentor)(tmp_path / 'x.jpg')


@pytest.mark.parametrize('kind', ('text', 'cut', 'zeros', 'bit'))
def test_a_damaged_file_is_one_sentence(opened, kind, tmp_path):
    path = write_detector(tmp_path / 'bad.onnx', DETS, LABELS, MASKS, num=3, **KEEP)
    add_checksum(path)
    data = path.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 2] ^= 1
    path.write_bytes({'text': b'no model\n' * 50, 'cut': data[:len(data) // 2], 'bit': flipped,
                      'zeros': data[:40] + bytes(200) + data[240:]}[kind])
    with pytest.raises(ModelError, match='bad.onnx (is damaged|was not written)') as caught:
        opened(path)
    assert '\n' not in str(caught.value) and 'ONNXRuntimeError' not in str(caught.value)


def test_files_of_others_and_of_later_versions(opened, segmentor, tmp_path, picture):
    wanted = opened(segmentor)(picture).scores
    add_checksum(segmentor)
    assert np.array_equal(opened(segmentor)(picture).scores, wanted)
    model = onnx.load(segmentor)
    model.producer_name = 'another program'
    onnx.save(model, segmentor)
    assert np.array_equal(opened(segmentor)(picture).scores, wanted)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / 'foreign.onnx')
    with pytest.raises(ModelError, match='foreign.onnx was not written by .*export'):
        opened(tmp_path / 'foreign.onnx')
    with pytest.raises(ModelError, match='version 2.*runtime.py'):
        opened(write_segmentor(tmp_path / 'later.onnx', xcit_dense=2))


def test_there_are_as_many_threads_as_asked_for(segmentor, monkeypatch):
    core, asked = pytest.importorskip('openvino').Core(), []

    def note_openvino(*args):
        model = core.compile_model(*args)
        asked.append(model.get_property('INFERENCE_NUM_THREADS'))
        return model

    def note_onnxruntime(path, options, session=onnxruntime.InferenceSession, **more):
        asked.append(options.intra_op_num_threads)
        return session(path, options, **more)

    monkeypatch.setattr(runtime, 'openvino_core', lambda: SimpleNamespace(
        read_model=core.read_model, compile_model=note_openvino))
    monkeypatch.setattr(onnxruntime, 'InferenceSession', note_onnxruntime)
    for name in RUNTIMES:
        for threads in (1, 2):
            Model(segmentor, name, threads=threads)
    assert asked == [1, 2, 1, 2]


def test_other_mistakes_with_the_model(segmentor, tmp_path, monkeypatch):
    with pytest.raises(ModelError, match='no file .*nowhere.onnx'):
        Model(tmp_path / 'nowhere.onnx')
    with pytest.raises(ModelError, match="onnxruntime, openvino, got 'tflite'"):
        Model(segmentor, 'tflite')
    for threads in (0, -1, 1.5, '2'):
        with pytest.raises(ModelError, match='threads'):
            Model(segmentor, threads=threads)
    monkeypatch.setattr(runtime, 'openvino_core', runtime.openvino_core.__wrapped__)  # as if it had never been there
    for name in RUNTIMES:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(ModelError, match=f'pip install {name}'):
            Model(segmentor, name)


def test_signals_are_heard_when_models_are_gone(tmp_path):
    code = '''
import os, signal, sys
from runtime import Model
first, second = Model(sys.argv[1], 'openvino'), Model(sys.argv[1], 'openvino')
signal.signal(signal.SIGTERM, lambda *args: print('heard', flush=True))
del first
del second
os.kill(os.getpid(), signal.SIGTERM)'''
    done = subprocess.run([sys.executable, '-c', code, write_backbone(tmp_path / 'm.onnx')],
                          cwd=Path(runtime.__file__).parent, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, 'heard\n')


def test_numpy_resizes_as_opencv_to_the_last_bit(monkeypatch):
    monkeypatch.setattr(runtime, 'cv2', None)
    random, pairs = np.random.default_rng(0), [((480, 640), (800, 1067)), ((1000, 1500), (512, 512))]
    for _ in range(40):
        a, b, height, width, low, small = random.integers(1, (120, 120, 120, 120, 5, 5)).tolist()
        olds = (a, b), (2 * height, 2 * width), (2 * height, b), (a, 2 * width), (low, small)
        pairs += [(old, (height, width)) for old in olds]
    for old, new in pairs:
        image = random.integers(0, 256, (*old, 3), np.uint8)
        wanted = cv2.resize(image, new[::-1], interpolation=cv2.INTER_LINEAR)
        assert np.array_equal(resize_linear(image, new[1], new[0]), wanted), (old, new)


@pytest.mark.parametrize('rule, options', (
    (dict(rule='keep_ratio', scale=[133, 80]), dict(scale=(133, 80), keep_ratio=True)),
    (dict(rule='keep_ratio', scale=[64, 256]), dict(scale=(64, 256), keep_ratio=True)),
    (dict(rule='fixed', size=[70, 50]), dict(scale=(70, 50), keep_ratio=False)),
    (dict(rule='none'), None)))
def test_images_are_prepared_as_mmdet_prepares_them(with_and_without_opencv, rule, options, tmp_path):
    model = Model(write_segmentor(tmp_path / 'm.onnx', resize=rule))
    random = np.random.default_rng(0)
    for height, width in ((40, 50), (50, 40), (97, 161), (33, 200), (160, 100), (80, 133), (1, 3)):
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(tmp_path / 'x.png')
        data = LoadImageFromFile()(dict(img_path=str(tmp_path / 'x.png')))
        data = Resize(**options)(data) if options else data
        assert np.array_equal(model.prepare(tmp_path / 'x.png'), data['img'][..., ::-1]), (height, width)


def pasted_by_mmdet(masks, boxes, height, width, threshold=.5):
    pasted = np.zeros((len(masks), height, width), bool)
    for mask, box, whole in zip(torch.from_numpy(masks)[:, None], torch.from_numpy(boxes), pasted, strict=True):
        part, place = _do_paste_mask(mask[None], box[None], height, width)
        whole[place] = (part[0] >= threshold).numpy()
    return pasted


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('height, width', ((90, 140), (301, 57)))
def test_masks_are_pasted_as_by_mmdet_to_the_last_bit(kind, height, width):
    random = np.random.default_rng(0)
    low, high, extent = KINDS[kind]
    middle = random.uniform(low, high, (25, 2)) * (width, height)
    half = extent * random.exponential(1, (25, 2))
    boxes = np.concatenate([middle - half, middle + half], 1).astype(np.float32)
    boxes[:, 2:] = boxes[:, 2:].clip(0)  # where a box lies wholly outside mmdet's own fails
    boxes[:, :2] = boxes[:, :2].clip(max=(width, height))
    masks = random.uniform(0, 1, (25, 26, 30)).astype(np.float32)
    for threshold in (.5, .8):
        wanted = pasted_by_mmdet(masks, boxes, height, width, threshold)
        assert np.array_equal(paste_masks(masks, boxes, height, width, threshold), wanted)
        assert wanted.any() or kind == 'tiny' or threshold == .8


def test_boxes_outside_or_without_numbers_have_empty_masks_and_large_ones_are_pasted_in_parts():
    masks = np.ones((4, 28, 28), np.float32)
    boxes = np.array([[-50, -50, -20, -20], [500, 10, 600, 20], [10, 500, 20, 600], [np.nan, 0, np.inf, 9]], np.float32)
    assert paste_masks(masks, boxes, 40, 60).shape == (4, 40, 60)
    assert not paste_masks(masks, boxes, 40, 60).any()
    assert paste_masks(masks[:0], boxes[:0], 40, 60).shape == (0, 40, 60)
    mask = np.random.default_rng(0).uniform(0, 1, (1, 28, 28)).astype(np.float32)
    box = np.array([[3, 5, 1990, 1480]], np.float32)  # more pixels than are computed at a time
    assert np.array_equal(paste_masks(mask, box, 1500, 2000), pasted_by_mmdet(mask, box, 1500, 2000))
