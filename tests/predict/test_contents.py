"""What is written of known outputs of a model: every number, label and colour."""
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from PIL import Image
from pycocotools import mask as mask_api

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.errors import CheckpointError, DataError
from xcit_dense.for_mmseg import SegDrawingHook
from xcit_dense.predict.files import predict_files
from xcit_dense.predict.predictor import build_predictor

HEIGHT, WIDTH = 60, 96
#: Colours (RGB) of which no two channels are alike, so that another order shows.
PAPER = (20, 90, 200)
PALETTE = [(220, 120, 10), (10, 230, 120), (120, 10, 230), (230, 10, 120), (10, 120, 220), (200, 200, 10)]


class KnownModel:
    """Gives known samples, one image after the other, and keeps what it was asked for."""

    def __init__(self, *samples):
        self.samples, self.asked = list(samples), []

    def test_step(self, data):
        self.asked.append(data)
        return [self.samples[len(self.asked) - 1]]


def make_predictor(config, work_dir, tmp_path, *samples, dataset=None, score_thr=0.3, **meta):
    """A predictor whose checkpoint says something else of its data, and whose model gives known samples."""
    checkpoint = torch.load(work_dir / ('epoch_2.pth' if config == TINY_CONFIG else 'iter_4.pth'), weights_only=False)
    checkpoint['meta']['dataset_meta'].update(meta)
    torch.save(checkpoint, tmp_path / 'known.pth')
    cfg = load_config(config, pretrained=False)
    cfg.test_dataloader.dataset.update(dataset or {})
    predictor = build_predictor(cfg, tmp_path / 'known.pth', score_thr)
    predictor.model = KnownModel(*samples)
    return predictor


def images(tmp_path, *names):
    """Files of one colour each."""
    paths = [tmp_path / 'images' / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (WIDTH, HEIGHT), PAPER).save(path, quality=95)
    return paths


def corner(top, left, height, width):
    """A mask like an L, which no turn and no mirror leaves as it is."""
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top:top + height, left:left + 3] = True
    mask[top + height - 5:top + height, left:left + width] = True
    return mask


def detected(boxes=(), labels=(), scores=(), masks=None):
    found = InstanceData(bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
                         labels=torch.tensor(labels, dtype=torch.long), scores=torch.tensor(scores))
    if masks is not None:
        found.masks = torch.from_numpy(np.stack(masks)) if masks else torch.zeros(0, HEIGHT, WIDTH, dtype=torch.bool)
    return DetDataSample(pred_instances=found)


def segmented(labels):
    return SegDataSample(pred_sem_seg=PixelData(data=torch.from_numpy(labels)[None]))


def colour_at(path, x, y):
    return np.asarray(Image.open(path).convert('RGB'))[y, x].astype(int)


def near(colour, wanted, most):
    return np.abs(colour - np.array(wanted)).max() <= most


def test_results_of_known_objects(trained, tmp_path):
    """Boxes become [x, y, width, height]; masks stay as they are; ids and names are those of the label."""
    masks = corner(4, 6, 40, 20), corner(20, 60, 30, 33), corner(1, 0, 12, 70)
    first = detected([[6, 4, 26, 44], [60, 20, 93.5, 50.25]], [4, 0], [0.875, 0.125], masks[:2])
    second = detected([[0, 1, 70, 13]], [2], [0.5], masks[2:])
    predictor = make_predictor(TINY_CONFIG, trained[0], tmp_path, first, second, detected(masks=[]),
                               category_ids=(7, 90, 3, 0, 10**12))
    paths = images(tmp_path, 'deep/0090.png', '7.jpg', '11.bmp')
    words = predict_files(predictor, tmp_path / 'images', paths, tmp_path / 'out')
    assert words.startswith('3 pictures and 3 objects')
    records = json.loads((tmp_path / 'out/results.json').read_text())
    found = [mask_api.decode(record.pop('segmentation')).astype(bool) for record in records]
    assert records == [
        dict(image_id=90, file_name='deep/0090.png', category_id=10**12, category_name='cross', score=0.875,
             bbox=[6, 4, 20, 40]),
        dict(image_id=90, file_name='deep/0090.png', category_id=7, category_name='disc', score=0.125,
             bbox=[60, 20, 33.5, 30.25]),
        dict(image_id=7, file_name='7.jpg', category_id=3, category_name='triangle', score=0.5, bbox=[0, 1, 70, 12])]
    assert [mask.shape for mask in found] == [(HEIGHT, WIDTH)] * 3
    assert all((mask == wanted).all() for mask, wanted in zip(found, masks, strict=True))
    assert sorted(path.relative_to(tmp_path / 'out').as_posix() for path in (tmp_path / 'out').rglob('*.jpg')) == [
        '11.jpg', '7.jpg', 'deep/0090.jpg']


@pytest.mark.parametrize('names, listed, ids', (
    (('7.png', '0012.png'), (), [7, 12]), (('0.png', '5.png'), (), [0, 5]), (('7.png', 'a.png'), (), [1, 2]),
    (('a/7.png', 'b/07.png'), (), [1, 2]), (('9.png', '-8.png'), (), [1, 2]),
    (('7.png', 'deep/0012.png'), ('7.png', 'deep/0012.png', 'other.png'), [1000, 1001]),
    (('7.png', 'deep/0012.png'), ('7.png', ), [7, 12])))
def test_ids_of_images(trained, tmp_path, names, listed, ids):
    """Those of the annotation file of the data if it lists all; otherwise the numbers in the names if all have one and
    no two are equal, otherwise the positions from 1."""
    dataset = {}
    if listed:
        (tmp_path / 'a.json').write_text(json.dumps(dict(annotations=[], categories=[], images=[
            dict(id=1000 + i, file_name=name) for i, name in enumerate(listed)])))
        dataset = dict(data_root=str(tmp_path), ann_file='a.json', data_prefix=dict(img='images/'))
    objects = [detected([[1, 2, 3, 4]], [0], [0.5]) for _ in names]
    predictor = make_predictor(TINY_CONFIG, trained[0], tmp_path, *objects, dataset=dataset)
    predict_files(predictor, tmp_path / 'images', images(tmp_path, *names), tmp_path / 'out')
    records = json.loads((tmp_path / 'out/results.json').read_text())
    assert [record['image_id'] for record in records] == ids and not any('segmentation' in r for r in records)
    assert [data['data_samples'][0].img_id for data in predictor.model.asked] == ids


def test_images_that_the_model_fails_on_or_that_cannot_be_read_keep_their_place(trained, tmp_path):
    paths = images(tmp_path, 'a.png', 'b.png', 'c.png', 'd.png')
    paths[1].write_bytes(b'no image')
    predictor = make_predictor(TINY_CONFIG, trained[0], tmp_path, None, *[detected([[1, 2, 3, 4]], [0], [0.5])] * 2)
    with pytest.raises(DataError, match='2 of 4 images could not be predicted(.|\n)*a.png: AttributeError(.|\n)*b.png'):
        predict_files(predictor, tmp_path / 'images', paths, tmp_path / 'out')
    records = json.loads((tmp_path / 'out/results.json').read_text())
    assert [(r['image_id'], r['file_name']) for r in records] == [(3, 'c.png'), (4, 'd.png')]


@pytest.mark.parametrize('config', (TINY_CONFIG, TINY_SEG_CONFIG), ids=('det', 'seg'))
def test_the_model_is_asked_for_the_image_as_it_is(trained, trained_segmentor, tmp_path, config):
    """In the order of OpenCV, which the model's preprocessor turns, with its size and nothing of a ground truth."""
    detector = config == TINY_CONFIG
    labels = np.zeros((HEIGHT, WIDTH), np.int64)
    work_dir = (trained if detector else trained_segmentor)[0]
    predictor = make_predictor(config, work_dir, tmp_path, detected() if detector else segmented(labels))
    predict_files(predictor, tmp_path / 'images', images(tmp_path, '5.png'), tmp_path / 'out')
    data, = predictor.model.asked
    asked, = data['inputs']
    assert [channel.float().mean().round().item() for channel in asked] == list(PAPER[::-1])
    assert data['data_samples'][0].ori_shape == (HEIGHT, WIDTH)
    assert asked.shape[2] / asked.shape[1] == pytest.approx(WIDTH / HEIGHT, rel=0.05)
    built = build_predictor(load_config(config, pretrained=False), work_dir).model
    assert not built.training
    pixel = built.data_preprocessor(data)['inputs'][0][:, 0, 0]
    wanted = (np.array(PAPER) - (123.675, 116.28, 103.53)) / (58.395, 57.12, 57.375)  # RGB, as ImageNet's weights
    assert np.allclose(pixel, wanted, atol=0.02)


def test_pictures_of_objects_have_their_colours(trained, tmp_path):
    """The image's own, the palette's for what is found, and nothing of what is below the threshold."""
    np.random.seed(1)  # mmdet varies the colours of masks
    block, other = np.zeros((2, HEIGHT, WIDTH), bool)
    block[20:50, 4:44] = True
    other[20:50, 54:90] = True
    sample = detected([[4, 20, 44, 50], [54, 20, 90, 50]], [1, 3], [0.8, 0.4], [block, other])
    pictures = {}
    for threshold in (0.3, 0.5):
        predictor = make_predictor(TINY_CONFIG, trained[0], tmp_path, sample, palette=PALETTE, score_thr=threshold)
        predictor.write(predictor.reader.read(images(tmp_path, 'a.png')[0], 1), 'a.png', tmp_path / str(threshold))
        assert len(predictor.records) == 2  # all are in the results
        pictures[threshold] = tmp_path / str(threshold) / 'a.jpg'
        assert Image.open(pictures[threshold]).size == (WIDTH, HEIGHT)
        assert near(colour_at(pictures[threshold], 49, 56), PAPER, 12)
        assert near(colour_at(pictures[threshold], 36, 44), 0.57 * np.array(PAPER) + 0.43 * np.array(PALETTE[1]), 25)
        assert not near(colour_at(pictures[threshold], 36, 44), PAPER, 40)
    assert near(colour_at(pictures[0.3], 82, 44), 0.57 * np.array(PAPER) + 0.43 * np.array(PALETTE[3]), 25)
    assert near(colour_at(pictures[0.5], 82, 44), PAPER, 12)


def halves():
    """A label map of six labels in fields of 20 x 48, another in each corner."""
    rows, columns = np.indices((HEIGHT, WIDTH))
    return (rows // 20 * 2 + columns // 48).astype(np.int64)


@pytest.mark.parametrize('first', (0, 1))
def test_label_maps_of_known_labels(trained_segmentor, tmp_path, first):
    """Every pixel has the number of its class in the data: from 0, or from 1 where 0 is unlabelled."""
    other = halves()[::-1].copy()
    predictor = make_predictor(TINY_SEG_CONFIG, trained_segmentor[0], tmp_path, segmented(halves()), segmented(other),
                               dataset=dict(reduce_zero_label=not first),  # the checkpoint knows better
                               reduce_zero_label=bool(first))
    words = predict_files(predictor, tmp_path / 'images', images(tmp_path, 'x/a.jpg', 'b.png'), tmp_path / 'out')
    assert words.startswith('2 pictures and 2 label maps')
    for name, wanted in (('x/a', halves()), ('b', other)):
        written = Image.open(tmp_path / f'out/labels/{name}.png')
        assert written.mode == 'L' and (np.asarray(written) == wanted + first).all()
    written = json.loads((tmp_path / 'out/classes.json').read_text())
    names = predictor.classes.names
    assert written['classes'] == {str(first + i): name for i, name in enumerate(names)} and len(names) == 6


def test_pictures_of_label_maps_have_their_colours(trained_segmentor, tmp_path):
    predictor = make_predictor(TINY_SEG_CONFIG, trained_segmentor[0], tmp_path, segmented(halves()), palette=PALETTE)
    predictor.write(predictor.reader.read(images(tmp_path, 'a.png')[0], 1), 'a.png', tmp_path / 'out')
    for label in range(6):  # at the edge of a field, away from its name
        x, y = 2 + 91 * (label % 2), 20 * (label // 2) + 2
        wanted = 0.4 * np.array(PAPER) + 0.6 * np.array(PALETTE[label])
        assert near(colour_at(tmp_path / 'out/a.jpg', x, y), wanted, 25), label


@pytest.mark.parametrize('draw', (True, False))
def test_tested_images_are_drawn_truth_beside_prediction(trained_segmentor, tmp_path, draw):
    predictor = make_predictor(TINY_SEG_CONFIG, trained_segmentor[0], tmp_path, palette=PALETTE)
    path, = images(tmp_path, 'deep/a.png')
    sample = SegDataSample(metainfo=dict(img_path=str(path)))
    for name, label in (('gt_sem_seg', 0), ('pred_sem_seg', 2)):
        setattr(sample, name, PixelData(data=torch.full((1, HEIGHT, WIDTH), label)))
    dataset = SimpleNamespace(data_prefix=dict(img_path=str(tmp_path / 'images')))
    runner = SimpleNamespace(visualizer=predictor.drawing.visualizer, test_dataloader=SimpleNamespace(dataset=dataset),
                             cfg=load_config(TINY_SEG_CONFIG, pretrained=False))
    SegDrawingHook(draw, str(tmp_path / 'out')).after_test_iter(runner, 0, None, [sample])
    assert (tmp_path / 'out').exists() == draw
    for place, label in ((2, 0), (WIDTH + 2, 2)) if draw else ():
        wanted = 0.4 * np.array(PAPER) + 0.6 * np.array(PALETTE[label])
        assert near(colour_at(tmp_path / 'out/deep/a.png', place, 2), wanted, 2)


def test_weights_without_names_take_those_of_the_data(trained_segmentor, demo_data, tmp_path):
    """A config that reads its classes from the data raises an error only if no data has them."""
    checkpoint = torch.load(trained_segmentor[0] / 'iter_4.pth', weights_only=False)
    torch.save(dict(state_dict=checkpoint['state_dict']), tmp_path / 'raw.pth')
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False, data_root=demo_data)
    assert build_predictor(cfg, tmp_path / 'raw.pth').classes.names == tuple(
        (demo_data / 'classes.txt').read_text().split())
    with pytest.raises(CheckpointError, match='no class names'):
        build_predictor(load_config(TINY_SEG_CONFIG, pretrained=False, data_root=tmp_path), tmp_path / 'raw.pth')
