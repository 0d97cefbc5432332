"""What is written of known outputs of a model: every number, label and colour."""
import json
import re
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData
from mmseg.structures import SegDataSample
from PIL import Image
from pycocotools import mask as mask_api

from helpers.paths import ROOT, TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense import load
from xcit_dense.config.check.keys import value_at
from xcit_dense.config.loading import load_config
from xcit_dense.errors import CheckpointError, DataError
from xcit_dense.predict.classes import image_ids
from xcit_dense.predict.files import predict_files
from xcit_dense.predict.predictor import build_predictor
from xcit_dense.weights import best_checkpoint, read_checkpoint

HEIGHT, WIDTH = 60, 96
#: Colours (RGB) of which no two channels are alike, so that another order shows.
PAPER = (20, 90, 200)
PALETTE = [(220, 120, 10), (10, 230, 120), (120, 10, 230), (230, 10, 120), (10, 120, 220), (200, 200, 10)]


@pytest.fixture
def predictor_of(trained, trained_segmentor, tmp_path):
    """A function that returns a predictor whose model gives known samples, with changes to what its checkpoint says."""

    def make(*samples, dataset=None, score_thr=0.3, **meta):
        detects = not isinstance(samples[-1], SegDataSample)
        file = trained[0] / 'epoch_2.pth' if detects else trained_segmentor[0] / 'iter_4.pth'
        checkpoint = torch.load(file, weights_only=False)
        checkpoint['meta']['dataset_meta'].update(meta)
        torch.save(checkpoint, tmp_path / 'known.pth')
        cfg = load_config(TINY_CONFIG if detects else TINY_SEG_CONFIG, pretrained=False)
        cfg.test_dataloader.dataset.update(dataset or {})
        predictor = build_predictor(cfg, tmp_path / 'known.pth', score_thr)
        known = SimpleNamespace(test_step=Mock(side_effect=[[sample] for sample in samples]))
        predictor.whole_model, predictor.model = predictor.model, known
        return predictor

    return make


def images(folder, *names):
    """Write files of one colour each; return their folder and their paths."""
    paths = [folder / 'images' / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (WIDTH, HEIGHT), PAPER).save(path, quality=95)
    return folder / 'images', paths


def corner(top, left, height, width):
    """A mask like an L, which no turn and no mirror leaves as it is."""
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[top:top + height, left:left + 3] = True
    mask[top + height - 5:top + height, left:left + width] = True
    return mask


def detected(boxes=((1, 2, 3, 4), ), labels=(0, ), scores=(0.5, ), masks=None):
    found = InstanceData(bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
                         labels=torch.tensor(labels, dtype=torch.long), scores=torch.tensor(scores))
    if masks is not None:
        found.masks = torch.from_numpy(np.stack(masks)) if masks else torch.zeros(0, HEIGHT, WIDTH, dtype=torch.bool)
    return DetDataSample(pred_instances=found)


def segmented(labels):
    return SegDataSample(pred_sem_seg=PixelData(data=torch.from_numpy(labels)[None]))


def results_in(out):
    return json.loads((out / 'results.json').read_text())


def near(path, x, y, wanted, most):
    colour = np.asarray(Image.open(path).convert('RGB'))[y, x].astype(int)
    return np.abs(colour - np.array(wanted)).max() <= most


def test_results_of_known_objects(predictor_of, tmp_path):
    """Boxes become [x, y, width, height]; masks stay as they are; ids and names are those of the label."""
    masks = corner(4, 6, 40, 20), corner(20, 60, 30, 33), corner(1, 0, 12, 70)
    first = detected([[6, 4, 26, 44], [60, 20, 93.5, 50.25]], [4, 0], [0.875, 0.125], masks[:2])
    second = detected([[0, 1, 70, 13]], [2], [0.5], masks[2:])
    predictor = predictor_of(first, second, detected((), (), (), []), category_ids=(7, 90, 3, 0, 10**12))
    words = predict_files(predictor, *images(tmp_path, 'deep/0090.png', '7.jpg', '11.bmp'), tmp_path / 'out')
    assert ': 3 pictures and 3 objects in results.json; drawn: 2, with a score of at least 0.3' in words
    words = predict_files(predictor_of(first, score_thr=0.9), *images(tmp_path, '1.png'), tmp_path / 'none')
    assert 'drawn: 0, ' in words and 'the best is 0.88, and' in words
    records = results_in(tmp_path / 'out')
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
    (('0.png', '0012.png'), (), [0, 12]), (('a/7.png', 'b/07.png'), (), [1, 2]), (('9.png', '-8.png'), (), [1, 2]),
    (('7.png', 'deep/0012.png'), ('deep/0012.png', 'other.png', '7.png'), [1002, 1000]),
    (('7.png', 'deep/0012.png'), ('7.png', ), [7, 12])))
def test_ids_of_images(names, listed, ids, tmp_path):
    """Those of the annotation file if it lists all; otherwise the numbers in the names if no two are equal."""
    (tmp_path / 'a.json').write_text(json.dumps(dict(annotations=[], categories=[], images=[
        dict(id=1000 + i, file_name=name) for i, name in enumerate(listed)])))
    cfg = load_config(TINY_CONFIG, pretrained=False)
    cfg.test_dataloader.dataset.update(data_root=str(tmp_path), ann_file='a.json', data_prefix=dict(img='images/'))
    assert image_ids(cfg, images(tmp_path, *names)[1])[0] == ids


def test_images_that_the_model_fails_on_or_that_cannot_be_read_keep_their_place(predictor_of, tmp_path):
    root, paths = images(tmp_path, 'a.png', 'b.png', 'c.png', 'd.png')
    paths[1].write_bytes(b'no image')
    with pytest.raises(DataError, match='2 of 4 images could not be predicted(.|\n)*a.png: AttributeError(.|\n)*b.png'):
        predict_files(predictor_of(None, detected(), detected()), root, paths, tmp_path / 'out')
    assert [(r['image_id'], r['file_name']) for r in results_in(tmp_path / 'out')] == [(3, 'c.png'), (4, 'd.png')]


@pytest.mark.parametrize('sample', (detected(), segmented(np.zeros((HEIGHT, WIDTH), np.int64))), ids=('det', 'seg'))
def test_the_model_is_asked_for_the_image_as_it_is(sample, predictor_of, tmp_path):
    predictor = predictor_of(sample)
    predict_files(predictor, *images(tmp_path, '5.png'), tmp_path / 'out')
    (data, ), _ = predictor.model.test_step.call_args
    asked, = data['inputs']
    assert [channel.float().mean().round().item() for channel in asked] == list(PAPER[::-1])
    assert data['data_samples'][0].ori_shape == (HEIGHT, WIDTH)
    assert asked.shape[2] / asked.shape[1] == pytest.approx(WIDTH / HEIGHT, rel=0.05)
    assert not predictor.whole_model.training
    wanted = (np.array(PAPER) - (123.675, 116.28, 103.53)) / (58.395, 57.12, 57.375)  # RGB, as ImageNet's weights
    assert np.allclose(predictor.whole_model.data_preprocessor(data)['inputs'][0][:, 0, 0], wanted, atol=0.02)


def test_pictures_of_objects_have_their_colours(predictor_of, tmp_path):
    block, other = np.zeros((2, HEIGHT, WIDTH), bool)
    block[20:50, 4:44] = True
    other[20:50, 54:90] = True
    sample = detected([[4, 20, 44, 50], [54, 20, 90, 50]], [1, 3], [0.8, 0.4], [block, other])
    first, second = (0.57 * np.array(PAPER) + 0.43 * np.array(PALETTE[label]) for label in (1, 3))
    for threshold in (0.3, 0.5):
        out = tmp_path / f'{threshold}'
        predict_files(predictor_of(sample, palette=PALETTE, score_thr=threshold), *images(tmp_path, 'a.png'), out)
        assert len(results_in(out)) == 2  # all are in the results
        picture = out / 'a.jpg'
        assert Image.open(picture).size == (WIDTH, HEIGHT) and near(picture, 49, 56, PAPER, 12)
        assert near(picture, 36, 44, first, 25) and not near(picture, 36, 44, PAPER, 40)
        assert near(picture, 82, 44, second, 25) if threshold == 0.3 else near(picture, 82, 44, PAPER, 12)


@pytest.mark.parametrize('first, label_map, numbers', (
    (0, None, (0, 1, 2, 3, 4, 5)), (1, {0: 255, 1: 0, 2: 1, 3: 255, 4: 2, 5: 3, 6: 4, 7: 5}, (2, 3, 5, 6, 7, 8))))
def test_label_maps_of_known_labels(predictor_of, tmp_path, first, label_map, numbers):
    """Every pixel has the number of its class in the data; an output without a name has the next one."""
    rows, columns = np.indices((HEIGHT, WIDTH))
    fields = rows // 20 * 2 + columns // 48  # six labels in fields of 20 x 48
    maps = fields, np.where(fields == 4, 7, fields)[::-1].copy()
    predictor = predictor_of(*map(segmented, maps), dataset=dict(reduce_zero_label=not first),  # the checkpoint counts
                             reduce_zero_label=bool(first), palette=PALETTE, label_map=label_map)
    words = predict_files(predictor, *images(tmp_path, 'x/a.jpg', 'b.png'), tmp_path / 'out')
    assert ': 2 pictures and 2 label maps' in words
    for name, wanted in zip(('x/a', 'b'), maps, strict=True):
        written = Image.open(tmp_path / f'out/labels/{name}.png')
        table = np.array([*numbers, numbers[-1] + 1, numbers[-1] + 2])
        assert written.mode == 'L' and (np.asarray(written) == table[wanted]).all()
    written, names = json.loads((tmp_path / 'out/classes.json').read_text()), predictor.classes.names
    assert written['classes'] == dict(zip(map(str, numbers), names, strict=True)) and len(names) == 6
    for label in range(6):  # at the edge of a field, away from its name
        colour = 0.4 * np.array(PAPER) + 0.6 * np.array(PALETTE[label])
        assert near(tmp_path / 'out/x/a.jpg', 2 + 91 * (label % 2), 20 * (label // 2) + 2, colour, 25), label


def test_what_was_fitted_is_used_unless_the_user_gives_it(trained, tmp_path):
    """And images have the size of the training, here in its config without the lines that change the size."""
    checkpoint, key = read_checkpoint(best_checkpoint(trained[0])), 'model.test_cfg.rcnn.max_per_img'
    before = value_at(load_config(TINY_CONFIG, pretrained=False), key)
    checkpoint['meta']['cfg'] += f"\nfitted = [dict(key='{key}', before={before}, after=7, why='')]\n"
    torch.save(checkpoint, tmp_path / 'fitted.pth')
    text = re.sub('^_base_[.].*\n', '', TINY_CONFIG.read_text(), flags=re.M)
    (tmp_path / 'config.py').write_text(text.replace("'..", f"'{ROOT}"))
    for given, limit in ((None, 7), ({key: before}, before)):
        loaded = load(tmp_path / 'config.py', tmp_path / 'fitted.pth', cfg_options=given)
        assert loaded.model.test_cfg.rcnn.max_per_img == limit
        assert loaded._predictor.reader._prepare.transforms[0].scale == (96, 96)


def test_weights_without_names_take_those_of_the_data(trained_segmentor, demo_data, tmp_path):
    checkpoint = torch.load(trained_segmentor[0] / 'iter_4.pth', weights_only=False)
    torch.save(dict(state_dict=checkpoint['state_dict']), tmp_path / 'raw.pth')
    cfg = load_config(TINY_SEG_CONFIG, pretrained=False, data_root=demo_data)
    assert build_predictor(cfg, tmp_path / 'raw.pth').classes.names == tuple(
        (demo_data / 'classes.txt').read_text().split())
    with pytest.raises(CheckpointError, match='raw.pth holds no class names'):
        build_predictor(load_config(TINY_SEG_CONFIG, pretrained=False, data_root=tmp_path), tmp_path / 'raw.pth')
