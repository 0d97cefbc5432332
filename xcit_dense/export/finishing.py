"""What is done with a traced file: metadata, a comparison with its checkpoint, a checksum."""
import zlib
from functools import partial

import cv2
import numpy as np
import torch

from .._utils.text import counted, first_line
from ..errors import ExportError
from ..runtime import open_onnxruntime

#: Batches that are compared, as batch, height and width: one larger, with odd sides, and one smaller than the traced.
_COMPARED = (1, 201, 333), (2, 160, 128)
#: The largest allowed difference: for levels relative to their largest value, for pixels and objects as a share.
MOST = dict(backbone=1e-4, segmentation=1e-3, detection=0.02)
#: The largest differences between the scores and between the sides, in pixels, of the same object.
_SCORE, _PIXELS = 1e-3, 0.5


def save(proto, metadata, path):
    """Write a model with metadata into a file, and make the size of the labels an optional input."""
    from onnx import helper, numpy_helper, save_model
    helper.set_model_props(proto, metadata)
    proto.producer_name = 'xcit_dense'
    if any(value.name == 'size' for value in proto.graph.input):
        proto.graph.initializer.append(numpy_helper.from_array(torch.zeros(2, dtype=torch.int64).numpy(), 'size'))
    save_model(proto, str(path))


def add_checksum(path):
    """Append a checksum to a file; `xcit_dense.runtime` compares it.

    It is the description of the model (field 6 of its protobuf), of which the last one counts. A program that changes
    the file writes it in another place, and then it is not compared.
    """
    data = path.read_bytes()
    path.write_bytes(b'%b2\x0ecrc32=%08x' % (data, zlib.crc32(data)))


def compare_file(path, predictor, task: str) -> tuple:
    """Return how far an exported file and its checkpoint differ: as a number like those of `MOST`, and as text;
    `ExportError` if onnxruntime cannot open or run the file."""
    def told(function, argument):
        try:
            return function(argument)
        except Exception as error:  # of onnxruntime's own types
            raise ExportError(f'onnxruntime cannot run the exported file: {first_line(error)}. Nothing was '
                              'written') from error

    run, _ = told(open_onnxruntime, str(path))
    return dict(backbone=_levels, segmentation=_pixels, detection=_objects)[task](partial(told, run), predictor)


def images(batch: int, height: int, width: int) -> np.ndarray:
    """Return generated images (B, H, W, 3), uint8: coloured patches with noise, the same on each call."""
    random = np.random.default_rng(height * width)
    patches = random.integers(0, 256, (batch, 8, 10, 3)).astype(np.uint8)
    large = np.stack([cv2.resize(image, (width, height), interpolation=cv2.INTER_CUBIC) for image in patches])
    return (large.astype(np.int64) + random.integers(-20, 21, large.shape)).clip(0, 255).astype(np.uint8)


def predictions(model, batch) -> list:
    """Return the predictions of a detector or segmentor for images (B, H, W, 3), RGB, as data samples."""
    from mmdet.structures import DetDataSample
    from mmseg.structures import SegDataSample
    height, width = batch.shape[1:3]
    kind = SegDataSample if hasattr(model, 'decode_head') else DetDataSample
    meta = dict(img_shape=(height, width), ori_shape=(height, width), scale_factor=(1., 1.))
    inputs = [torch.from_numpy(np.ascontiguousarray(image[..., ::-1].transpose(2, 0, 1))) for image in batch]
    with torch.no_grad():
        return model.test_step(dict(inputs=inputs, data_samples=[kind(metainfo=meta) for _ in inputs]))


def _levels(run, predictor):
    backbone, worst = predictor.model.backbone, 0.
    for size in _COMPARED:
        batch = torch.from_numpy(images(*size)).permute(0, 3, 1, 2).contiguous() / 128. - 1
        batch = batch[:, torch.arange(backbone.in_channels) % 3]
        with torch.no_grad():
            expected = backbone(batch)
        for level, found in zip(expected, run(dict(images=batch.numpy())).values(), strict=True):
            share = float((torch.from_numpy(found) - level).abs().max() / level.abs().max().clamp(min=1e-30))
            worst = float(np.maximum(worst, share))  # NaN too
    return worst, f'levels differ by at most {worst:.1g} of their largest value'


def _pixels(run, predictor):
    other, count = 0, 0
    for size in _COMPARED:
        batch = images(*size)
        found = run(dict(image=batch))['labels']
        expected = torch.stack([sample.pred_sem_seg.data[0] for sample in predictions(predictor.model, batch)])
        other, count = other + int((expected.numpy() != found).sum()), count + found.size
    return other / count, f'{other:,} of {count:,} pixels have a different label'


def _objects(run, predictor):
    missing, total, model = 0, 0, predictor.model
    cfg = (model.roi_head if hasattr(model, 'roi_head') else model.bbox_head).test_cfg
    for size in _COMPARED:
        batch = images(*size)
        found = run(dict(image=batch))
        for i, sample in enumerate(predictions(model, batch)):
            expected, n = sample.pred_instances.numpy(), int(found['num'][i])
            boxes, scores, labels = found['dets'][i, :n, :4], found['dets'][i, :n, 4], found['labels'][i, :n]
            same = ((labels == expected.labels[:, None]) & (np.abs(scores - expected.scores[:, None]) <= _SCORE)
                    & (np.abs(boxes - expected.bboxes[:, None]).max(2) <= _PIXELS))
            alone = np.concatenate([expected.scores[~same.any(1)], scores[~same.any(0)]])
            # rounding decides what is found at the threshold, or at the lowest score where the number is limited
            edge = expected.scores.min() if len(expected.scores) == cfg.max_per_img else cfg.get('score_thr', 0)
            missing += int((np.abs(alone - edge) > _SCORE).sum())
            total += n + int((~same.any(1)).sum())
    if not total:
        return 0., 'neither finds an object in them, which proves little. Compare both with `test`'
    return missing / total, f'{missing:,} of {counted(total, "objects")} found by only one of them'
