"""The comparison of a file with its checkpoint: what it counts, and what it says if one of both does not run."""
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.config import ConfigDict
from mmengine.structures import InstanceData, PixelData

from helpers.onnx_files import write_backbone, write_detector, write_segmentor
from xcit_dense.errors import ExportError
from xcit_dense.export import finishing
from xcit_dense.export.finishing import compare_file

pytest.importorskip('onnxruntime')


def with_backbone(forward):
    forward.in_channels = 3
    return SimpleNamespace(model=SimpleNamespace(backbone=forward))


@pytest.mark.parametrize('twice, mean, share', ((2, 1, 0), (2.002, 1, 1e-3), (2, -1, 2)))
def test_levels_are_compared_relative_to_their_largest_value(twice, mean, share, tmp_path):
    predictor = with_backbone(lambda images: (twice * images, mean * F.avg_pool2d(images, 2)))
    got, words = compare_file(write_backbone(tmp_path / 'model.onnx'), predictor, 'backbone')
    assert got == pytest.approx(share, rel=0.01, abs=1e-6) and f'by at most {got:.1g} of' in words


def test_pixels_with_another_label_are_counted(tmp_path, monkeypatch):
    def predictions(model, batch):
        labels = torch.from_numpy(batch.argmax(-1))
        labels[-1, 3:7, 5:15] += 1
        return [SimpleNamespace(pred_sem_seg=PixelData(data=each[None])) for each in labels]

    monkeypatch.setattr(finishing, 'predictions', predictions)
    found = compare_file(write_segmentor(tmp_path / 'model.onnx'), SimpleNamespace(model=None), 'segmentation')
    assert found == (80 / 107_893, '80 of 107,893 pixels have a different label')


@pytest.mark.parametrize('change, cfg, wanted', (
    ({}, {}, (0, 6)),
    (dict(bboxes=0.4, scores=5e-4), {}, (0, 6)),
    (dict(bboxes=0.6), {}, (12, 12)),
    (dict(scores=2e-3), {}, (12, 12)),
    (dict(labels=1), {}, (12, 12)),
    (dict(keep=1), {}, (3, 6)),  # the other has a score of 0.1
    (dict(keep=1), dict(score_thr=0.1005), (0, 6)),
    (dict(keep=0), dict(score_thr=0.1), (3, 6)),
    (dict(keep=1), dict(max_per_img=1), (3, 6)),  # the limit is reached: 0.9 decides
    (dict(scores=-5e-3, more=0.102), dict(max_per_img=3), (12, 15))))
def test_an_object_just_at_the_threshold_makes_no_file_wrong(change, cfg, wanted, tmp_path, monkeypatch):
    """Nor one at the limit; every other that has no partner counts. There are three images."""
    dets, labels = np.array([[0.25, 0.5, 0.75, 1, 0.9], [0, 0, 0.5, 1, 0.1]], np.float32), np.array([2, 0])
    file = write_detector(tmp_path / 'model.onnx', dets, labels)

    def predictions(model, batch):
        height, width = batch.shape[1:3]
        keep = slice(change.get('keep', 2))
        found = dict(bboxes=torch.tensor(dets[:, :4] * [width, height, width, height])[keep],
                     scores=torch.tensor(dets[:, 4])[keep], labels=torch.tensor(labels)[keep])
        for name in found:
            found[name] = found[name] + change.get(name, 0)
        if 'more' in change:
            found = {name: torch.cat([value, value[-1:]]) for name, value in found.items()}
            found['scores'][-1] = change['more']
        return [SimpleNamespace(pred_instances=InstanceData(**found)) for _ in batch]

    monkeypatch.setattr(finishing, 'predictions', predictions)
    head = SimpleNamespace(test_cfg=ConfigDict(max_per_img=100) | cfg)
    for part in ('roi_head', 'bbox_head'):
        predictor = SimpleNamespace(model=SimpleNamespace(**{part: head}))
        share, words = compare_file(file, predictor, 'detection')
        assert words == '{} of {} objects found by only one of them'.format(*wanted)
        assert share == wanted[0] / wanted[1]


def test_where_neither_finds_an_object_little_is_proved(tmp_path, monkeypatch):
    file = write_detector(tmp_path / 'model.onnx', np.zeros((1, 5), np.float32), np.array([-1]), num=0)
    none = InstanceData(bboxes=torch.zeros(0, 4), scores=torch.zeros(0), labels=torch.zeros(0, dtype=torch.int64))
    monkeypatch.setattr(finishing, 'predictions', lambda model, batch: [
        SimpleNamespace(pred_instances=none) for _ in batch])
    predictor = SimpleNamespace(model=SimpleNamespace(bbox_head=SimpleNamespace(test_cfg=ConfigDict(
        max_per_img=9))))
    share, words = compare_file(file, predictor, 'detection')
    assert share == 0 and words.startswith('neither finds an object')


def test_an_error_of_the_checkpoint_is_not_one_of_the_file(tmp_path):
    def backbone(images):
        raise RuntimeError('no memory')

    with pytest.raises(RuntimeError, match='^no memory'):
        compare_file(write_backbone(tmp_path / 'model.onnx'), with_backbone(backbone), 'backbone')


def test_a_file_that_onnxruntime_does_not_run_is_one_sentence(tmp_path):
    (tmp_path / 'damaged.onnx').write_bytes(b'damaged')
    for path in (tmp_path / 'damaged.onnx', write_backbone(tmp_path / 'levels.onnx')):
        with pytest.raises(ExportError, match='^onnxruntime cannot run the exported file: ') as caught:
            compare_file(path, SimpleNamespace(model=None), 'segmentation')
        assert '\n' not in str(caught.value)
