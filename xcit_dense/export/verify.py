"""Whether a file computes the same as its checkpoint: on images of other sizes than the traced one."""
import cv2
import numpy as np
import torch

from .._utils.text import counted, first_line
from ..errors import ExportError
from ..runtime import open_onnxruntime

#: Batches that are compared, as batch, height and width: one larger, with odd sides, and one smaller than the traced.
_COMPARED = (1, 201, 333), (2, 160, 128)
#: The largest allowed difference: for levels relative to their largest value, for pixels and objects as a share.
_MOST = dict(backbone=1e-4, segmentation=1e-3, detection=0.02)
#: The largest difference between the scores of the same object.
_SCORE = 1e-3


def check_file(path, predictor, task: str) -> str:
    """Compare an exported file with its checkpoint, and return a description of how far they agree.

    Args:
        path: The file.
        predictor: The predictor of the checkpoint.
        task: The task of the file, as for `xcit_dense.export.metadata.metadata_of`.

    Raises:
        ExportError: They do not agree.
    """
    share, words = compare_file(path, predictor, task)
    if not share <= _MOST[task]:
        raise ExportError(f'the exported file does not compute the same as the checkpoint: {words}. Nothing was '
                          'written')
    return f'Compared with the checkpoint on {sum(size[0] for size in _COMPARED)} generated images: {words}'


def compare_file(path, predictor, task: str) -> tuple:
    """Return how far an exported file and its checkpoint differ: as a number like those of `_MOST`, and as text.

    Raises:
        ExportError: onnxruntime cannot open or run the file.
    """
    compare = dict(backbone=_levels, segmentation=_pixels, detection=_objects)[task]
    try:
        return compare(open_onnxruntime(str(path))[0], predictor)
    except Exception as error:  # of onnxruntime's own types
        raise ExportError(f'onnxruntime cannot run the exported file: {first_line(error)}. Nothing was '
                          'written') from error


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
            worst = max(worst, float((torch.from_numpy(found) - level).abs().max() / level.abs().max()))
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
    missing, total, far = 0, 0, 0.
    for size in _COMPARED:
        batch = images(*size)
        found = run(dict(image=batch))
        for i, sample in enumerate(predictions(predictor.model, batch)):
            expected, n = sample.pred_instances.numpy(), int(found['num'][i])
            dets = found['dets'][i, :n]
            pairs = match(expected, dets, found['labels'][i, :n])
            total += len(expected.scores) + n - len(pairs)
            alone = np.concatenate([np.delete(expected.scores, [pair[0] for pair in pairs]),
                                    np.delete(dets[:, 4], [pair[1] for pair in pairs])])
            missing += int((np.abs(alone - _edge(predictor.model, expected.scores)) > _SCORE).sum())
            far = max([far, *(distance for *_, distance in pairs)])
    if not total:
        return 0., 'neither finds an object in them, which proves little. Compare both with `test`'
    words = f'{missing:,} of {counted(total, "objects")} found by only one of them'
    return missing / total, f'{words}, boxes differ by at most {far:.1g} pixels'


def _edge(model, scores):
    """Return the score at which rounding decides what is found: the threshold, or the lowest score at the limit."""
    cfg = (model.roi_head if hasattr(model, 'roi_head') else model.bbox_head).test_cfg
    return scores.min() if len(scores) == cfg.max_per_img else cfg.get('score_thr', 0)


def match(expected, dets, labels, pixels: float = 0.5, score: float = _SCORE) -> list:
    """Pair objects of a data sample with those of a file, each once.

    Args:
        expected: With ``bboxes``, ``scores`` and ``labels``, as arrays.
        dets: (n, 5), boxes and scores.
        labels: (n).
        pixels: The largest distance between the sides of a pair.
        score: The largest difference between the scores of a pair.

    Returns:
        For each pair the two indices, and the largest distance between the sides of the boxes in pixels.
    """
    pairs, free = [], np.ones(len(dets), bool)
    for i in range(len(expected.scores)):
        near = free & (labels == expected.labels[i]) & (np.abs(dets[:, 4] - expected.scores[i]) <= score)
        distance = np.where(near, np.abs(dets[:, :4] - expected.bboxes[i]).max(1), np.inf)
        if len(distance) and distance.min() <= pixels:
            j = int(distance.argmin())
            free[j] = False
            pairs.append((i, j, float(distance[j])))
    return pairs
