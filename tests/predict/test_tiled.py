"""Tiles: how an image is cut into them, labels from their scores, and pictures predicted in them."""
import json
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.registry import init_default_scope
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from PIL import Image
from pycocotools import mask as mask_api

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import peak_of_tool
from xcit_dense.draw import draw_objects as draw_once
from xcit_dense.errors import ConfigError
from xcit_dense.predict.classes import Classes
from xcit_dense.predict.drawing import Drawing
from xcit_dense.predict.merging import find_in_tiles
from xcit_dense.predict.predictor import SegmentationPredictor
from xcit_dense.predict.reading import BigImage, ImageReader, ReadImage
from xcit_dense.predict.tiles import Tiling, blend, tiling_of

pytestmark = pytest.mark.filterwarnings('ignore')
SIZE = 50, 70
COLOURS = ((250, 40, 40), (40, 250, 40), (40, 40, 250))


@pytest.mark.parametrize('tile, overlap', ((1024, 0.2), (100, 0), (7, 0.5), (10, 0.99), (1, 0), (3, 0.9), (64, 0.75)))
def test_tiles_cover_an_image_evenly_with_the_overlap_asked(tile, overlap):
    for length in (*range(tile + 1, tile + 40), 10 * tile + 3):
        spans = Tiling(tile, overlap).spans(length)
        assert spans[0].start == 0 and spans[-1].end == length and {end - start for start, end in spans} == {tile}
        steps = np.diff([span.start for span in spans])
        assert steps.min() >= 1 and steps.max() - steps.min() <= 1
        assert tile - steps.max() >= min(int(tile * overlap), tile - 1)
        if len(spans) > 2:  # one fewer would not do
            assert (len(spans) - 2) * max(int(tile * (1 - overlap) + 1e-9), 1) < length - tile


@pytest.mark.parametrize('tile, overlap, words', (
    (0, None, '--tile.*0.*1024'), (64.5, None, '--tile.*64.5'), ('64', None, "--tile.*'64'"),
    (64, 1, '--overlap.*1.*0.2'), (64, -0.1, '--overlap.*-0.1'), (64, float('nan'), '--overlap.*nan'),
    (None, 0., '--overlap.*0.*--tile')))
def test_tiles_that_cannot_be(tile, overlap, words):
    with pytest.raises(ConfigError, match=words):
        tiling_of(tile, overlap)


def sample_of(logits, keeps_scores=True):
    found = SegDataSample(pred_sem_seg=PixelData(data=logits.argmax(0, keepdim=True)))
    if keeps_scores:
        found.seg_logits = PixelData(data=logits)
    return found


def blended(scores_of, tiling, **options):
    """Labels and scores of an image; each pixel is given once."""
    tiles = tiling.tiles(*SIZE)
    labels, scores, count = np.full(SIZE, -1), None, np.zeros(SIZE, int)
    for place, outputs, means in blend(map(scores_of, tiles), tiles, **options):
        labels[place] = outputs
        count[place] += 1
        if means is not None:
            scores = torch.zeros(len(means), *SIZE) if scores is None else scores
            scores[(slice(None), *place)] = means
    assert (count == 1).all()
    return labels, scores


def part(array, tile):
    return array[..., slice(*tile.y), slice(*tile.x)].clone()


@pytest.mark.parametrize('keeps_scores', (True, False))
@pytest.mark.parametrize('tile, overlap', ((20, 0), (20, 0.6), (16, 0.8), (64, 0.2)))
def test_a_model_that_looks_at_single_pixels_has_the_labels_of_the_whole(tile, overlap, keeps_scores):
    whole = torch.randn(20, *SIZE)
    labels, scores = blended(lambda one: sample_of(part(whole, one), keeps_scores), Tiling(tile, overlap), scores=True)
    assert np.array_equal(labels, whole.argmax(0).numpy())
    assert torch.allclose(scores, whole, atol=1e-5) if keeps_scores else scores is None


@pytest.mark.parametrize('overlap', (0.2, 0.5, 0.8))
def test_blended_scores_have_no_seams(overlap):
    tiling, values = Tiling(20, overlap), np.random.default_rng(0).random(10**4)
    _, scores = blended(lambda tile: sample_of(torch.full((2, 20, 20), values[tile.row * 100 + tile.column])), tiling,
                        scores=True)
    for axis, length in ((1, 50), (2, 70)):
        first, second, *_ = tiling.spans(length)
        assert np.abs(np.diff(scores.numpy(), axis=axis)).max() < 2 / min(first.end - second.start, 10)


def test_without_scores_a_pixel_has_the_label_of_the_nearer_tile():
    tiles = Tiling(20, 0.5).tiles(*SIZE)
    labels, _ = blended(lambda tile: sample_of(torch.eye(len(tiles))[tiles.index(tile)][:, None, None].repeat(
        1, 20, 20), False), Tiling(20, 0.5))
    for y, x in np.ndindex(*SIZE):
        near = min(tiles, key=lambda tile: (abs((tile.y.start + tile.y.end) / 2 - y - 0.5)
                                            + abs((tile.x.start + tile.x.end) / 2 - x - 0.5)))
        assert tiles[labels[y, x]] == near


def picture():
    """Shapes in three colours, each a class, at places where tiles of 100 pixels cut some."""
    picture, noise = np.zeros((260, 330, 3), np.uint8), np.random.default_rng(0)
    places = [(y, x) for y in range(28, 250, 56) for x in range(28, 320, 56)]
    for number, (y, x) in enumerate(places):
        colour, size = COLOURS[number % 3], int(noise.integers(12, 26))
        if number % 2:
            cv2.circle(picture, (x, y), size, colour, -1)
        else:
            cv2.rectangle(picture, (x - size, y - size), (x + size - 4, y + size), colour, -1)
    return picture, len(places)


def found_in(picture):
    """All shapes of a picture, each once; a part of one is surer than all of it."""
    boxes, scores, labels, masks = [], [], [], []
    for label, colour in enumerate(COLOURS):
        count, parts = cv2.connectedComponents((picture == colour).all(2).astype(np.uint8))
        for number in range(1, count):
            mask = parts == number
            ys, xs = np.nonzero(mask)
            boxes.append([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            scores.append(0.9 - mask.sum() / 1e4)
            labels.append(label)
            masks.append(mask)
    return DetDataSample(pred_instances=InstanceData(
        bboxes=torch.tensor(np.array(boxes).reshape(-1, 4)).float(), scores=torch.tensor(scores),
        labels=torch.tensor(labels).long(), masks=torch.tensor(np.array(masks).reshape(-1, *picture.shape[:2]))))


def find(image: ReadImage):
    assert image.data['inputs'].shape[1:] == image.picture.shape[:2]
    return found_in(image.picture)


def picture_of(big, longest=None):
    return big.shown(found_in(np.zeros((1, 1, 3), np.uint8)), longest)[0]


@pytest.fixture
def reader(request):
    init_default_scope('mmdet')
    options = getattr(request, 'param', {})
    return ImageReader(dict(pipeline=[dict(type='LoadImageFromFile', **options), dict(type='PackDetInputs')]))


@pytest.mark.parametrize('tile, overlap', ((64, 0.3), (200, 0.1), (40, 0.2)))
def test_objects_at_the_borders_of_tiles_are_found_once(tile, overlap, reader):
    image, count = picture()
    finds = find_in_tiles(find, reader.read(image, Tiling(tile, overlap))).pred_instances
    wanted = found_in(image).pred_instances.numpy()
    assert len(finds) == len(wanted.scores) == count
    boxes = {(int(label), *map(int, box)): mask for label, box, mask in
             zip(wanted.labels, wanted.bboxes, wanted.masks, strict=True)}
    for label, box, found in zip(finds.labels, finds.bboxes, finds.masks, strict=True):
        mask = boxes.pop((int(label), *map(int, box)))
        assert found.rle(*mask.shape) == mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert not boxes


def test_tiles_are_cut_from_the_picture_as_its_loader_gives_it(reader):
    image, _ = picture()
    whole, big = reader.read(image), reader.read(image, Tiling(100))
    assert big.margin == 2 and reader.read(image, Tiling(320)).margin == 3
    assert isinstance(big, BigImage) and all((picture_of(big, most) == image).all() for most in (None, 330, 999))
    assert picture_of(big, 165).shape == (130, 165, 3)
    for tile, part in big.read():
        assert (part.picture == image[slice(*tile.y), slice(*tile.x)]).all()
        assert torch.equal(part.data['inputs'], whole.data['inputs'][:, slice(*tile.y), slice(*tile.x)])
        assert part.data['data_samples'].ori_shape == (100, 100)
    small = reader.read(image, Tiling(330))
    assert isinstance(small, ReadImage) and torch.equal(small.data['inputs'], whole.data['inputs'])


@pytest.fixture
def image():
    noise = np.random.default_rng(0)
    return cv2.resize(noise.integers(0, 255, (23, 31, 3), np.uint8), (311, 233), interpolation=cv2.INTER_CUBIC)


@pytest.mark.parametrize('kind, reader', (
    ('turned', {}), ('alpha', {}), ('16 bits', {}), ('array', {}), ('grey', dict(color_type='grayscale'))),
                         indirect=['reader'])
def test_every_kind_of_image_is_cut_into_tiles(kind, reader, image, photograph, tmp_path):
    path = photograph(tmp_path / 'a.jpg', image)
    if kind != 'turned':
        path = tmp_path / 'a.png'
        cv2.imwrite(str(path), {'alpha': cv2.cvtColor(image, cv2.COLOR_BGR2BGRA),
                                '16 bits': image.astype(np.uint16) * 256}.get(kind, image))
    big = reader.read(image if kind == 'array' else path, Tiling(64, 0.3))
    assert isinstance(big, BigImage)
    tile, part = next(iter(big.read()))
    assert (part.picture == picture_of(big)[slice(*tile.y), slice(*tile.x)]).all()
    assert (big.size[0] > big.size[1]) == (kind == 'turned')


class Numbered(SegmentationPredictor):
    """A segmentor whose output for a pixel is in its first two channels, up to the last output that it has."""

    def __init__(self, numbers, outputs, reader):
        self.classes, self.outputs, self.reader = Classes(tuple(map(str, numbers)), numbers, '', ''), outputs, reader
        self.drawing, self.count, self.model = SimpleNamespace(write=lambda *_: None), 0, None

    def samples(self, images):
        found = torch.from_numpy(images[0].picture[..., 0].astype(np.int64) * 256 + images[0].picture[..., 1])
        return [SegDataSample(pred_sem_seg=PixelData(data=found.clamp(max=self.outputs - 1)[None]))]


@pytest.mark.parametrize('numbers, outputs, kind', (
    (range(255), 255, np.uint8), (range(1, 256), 3, np.uint16), (range(1, 281), 300, np.uint16)))
def test_label_maps_have_as_many_bits_as_all_classes_need(numbers, outputs, kind, reader, tmp_path):
    """Not only those of one image: maps of 8 bits have no class 255, and those of one data set are of one type."""
    image, columns = np.zeros((530, 300, 3), np.uint8), np.arange(300)
    image[..., 0], image[..., 1] = columns // 256, columns % 256
    predictor = Numbered(tuple(numbers), outputs, reader)
    for tiling in (None, Tiling(100)):
        predictor.write(reader.read(image, tiling), 'a.jpg', tmp_path)
        for written in (cv2.imread(str(tmp_path / 'labels/a.png'), cv2.IMREAD_UNCHANGED),
                        np.asarray(Image.open(tmp_path / 'labels/a.png'))):
            assert (written == np.broadcast_to(columns.clip(max=outputs - 1) + numbers[0], (530, 300))).all()
        assert cv2.imread(str(tmp_path / 'labels/a.png'), cv2.IMREAD_UNCHANGED).dtype == kind
        (tmp_path / 'labels/a.png').unlink()
    assert predictor.count == 2


def test_the_threshold_of_a_model_with_one_output_counts_in_tiles_too(reader):
    predictor = Numbered((0, 1), 2, reader)
    predictor.model = SimpleNamespace(decode_head=SimpleNamespace(threshold=0.7))
    predictor.samples = lambda images: [SegDataSample(seg_logits=PixelData(
        data=torch.from_numpy(images[0].picture[None, ..., 0] / 255)))]
    image = np.arange(0, 240, 2, np.uint8)[:, None, None].repeat(90, 1).repeat(3, 2)
    shares = image[..., 0] / 255
    for scores in (False, True):
        found = predictor(reader.read(image, Tiling(50)), scores=scores)
        assert (found.pred_sem_seg.data[0] == (shares > 0.7)).all() and ('label_scores' in found) == scores
    assert np.allclose(found.label_scores.data[0], np.where(shares > 0.7, shares, 1 - shares), atol=1e-6)


def test_tiles_smaller_than_the_model_takes(detector, segmentor, path, trained, tmp_path, call_tool):
    size = max(cv2.imread(str(path)).shape)
    whole, found = detector(path), detector([path], tile=size)[0]
    assert all(np.array_equal(getattr(whole, name), getattr(found, name)) for name in ('boxes', 'scores', 'masks'))
    assert np.array_equal(segmentor(path).scores, segmentor(path, tile=size, overlap=0.5).scores)
    with pytest.raises(ConfigError, match='batch_size'):
        detector([path, path], tile=40, batch_size=2)
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', tmp_path / 'o', '--tile', '0')
    assert code == 1 and '--tile' in message and not (tmp_path / 'o').exists()


@pytest.mark.parametrize('visualizer', (dict(), dict(alpha=0.5)), ids=('own look', "mmdet's"))
def test_a_large_picture_is_drawn_smaller_with_all_objects(visualizer, reader, tmp_path):
    """All at once, so that a worse one is never over a better one, though masks are read one by one."""
    image, names = picture()[0], ('red', 'green', 'blue')
    drawing = Drawing(dict(type='DetLocalVisualizer', **visualizer), dict(classes=names, palette=[*COLOURS]),
                      pred_score_thr=-1.)
    big = reader.read(image, Tiling(100))
    sample = find_in_tiles(find, big)
    found = sample.pred_instances[:8] if visualizer else sample.pred_instances
    again = found[:]
    again.scores, again.labels = torch.full_like(found.scores, 0.01), (found.labels + 1) % 3
    sample.pred_instances = found.cat([found, again])
    small, shown = big.shown(sample, 165)
    assert small.shape == (130, 165, 3)
    np.random.seed(5)
    wanted = np.random.RandomState(5).rand()
    drawn = drawing.draw(small, shown)
    assert np.random.rand() == wanted  # mmdet's colours of masks are random, those of the caller go on
    drawing.write(small, shown, tmp_path / 'drawn.png')
    assert (cv2.imread(str(tmp_path / 'drawn.png'))[..., ::-1] == drawn).all() and (drawn != small).any()
    if visualizer:
        return
    labels = np.arange(260)[:, None] * 200 + np.arange(330)
    labels = big.shown(SegDataSample(pred_sem_seg=PixelData(data=labels[None].astype(np.uint16))), 3)[1]
    assert labels.pred_sem_seg.data.tolist() == [[[13055, 13165, 13275], [39055, 39165, 39275]]]
    masks = [mask() for mask in shown.pred_instances.masks]
    for whole, box, mask, cut in zip(sample.pred_instances.bboxes, shown.pred_instances.bboxes, masks,
                                     sample.pred_instances.masks, strict=True):
        assert np.allclose(box, whole / 2) and abs(mask.sum() * 4 / cut.pixels().sum() - 1) < 0.25
        ys, xs = np.nonzero(mask)
        assert np.abs(box - np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])).max() <= 1
    shown = shown.pred_instances
    assert (drawn == draw_once(small, shown.bboxes, shown.labels, names, COLOURS, masks, shown.scores)).all()


@pytest.mark.slow
@pytest.mark.parametrize('kind, limit', (('detector', 1.6), ('segmentor', 2.6)))  # in GiB
def test_a_large_picture_in_tiles_takes_so_much_memory(kind, limit, trained, trained_segmentor, tmp_path):
    """6000 x 6000 pixels with 50 objects a tile: as many masks of the whole picture would be 100 GB."""
    coarse = np.random.default_rng(0).integers(0, 255, (120, 120, 3), np.uint8)
    cv2.imwrite(str(tmp_path / 'a.jpg'), cv2.resize(coarse, (6000, 6000)))
    config, work_dir = (TINY_CONFIG, trained[0]) if kind == 'detector' else (TINY_SEG_CONFIG, trained_segmentor[0])
    options = ['--cfg-options', 'model.test_cfg.rcnn.score_thr=0'] if kind == 'detector' else []
    peak = peak_of_tool('predict', config, work_dir, 'a.jpg', '--out', 'out', '--tile', '1024', *options, cwd=tmp_path)
    assert peak < limit, f'{peak:.2f} GiB'
    assert cv2.imread(str(tmp_path / 'out/a.jpg')).shape == (2048, 2048, 3)
    if kind == 'detector':
        records = json.loads((tmp_path / 'out/results.json').read_text())
        assert len(records) > 500 and {tuple(one['segmentation']['size']) for one in records} == {(6000, 6000)}
    else:
        assert cv2.imread(str(tmp_path / 'out/labels/a.png'), cv2.IMREAD_UNCHANGED).shape == (6000, 6000)
