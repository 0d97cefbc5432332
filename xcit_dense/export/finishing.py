"""What is done with a traced file: metadata, a comparison with its checkpoint, quantisation to int8, a checksum.

The comparison uses images of other sizes than the traced one. Matrix products and dense convolutions with fixed weights
are quantised: weights per channel, inputs with one range, which is measured on the calibration images. Everything else
stays in float32: norms, softmax, GELU, Gram matrices and what is computed from them, depthwise convolutions, and the
layers that `KEPT` names.
"""
import json
import logging
import zlib
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from types import SimpleNamespace

import cv2
import numpy as np
import torch
from tqdm import tqdm

from .._utils.text import counted, first_line
from ..errors import ConfigError, ExportError
from ..runtime import open_onnxruntime

#: Batches that are compared, as batch, height and width: one larger, with odd sides, and one smaller than the traced.
_COMPARED = (1, 201, 333), (2, 160, 128)
#: The largest allowed difference: for levels relative to their largest value, for pixels and objects as a share.
MOST = dict(backbone=1e-4, segmentation=1e-3, detection=0.02)
#: The largest differences between the scores and between the sides, in pixels, of the same object.
_SCORE, _PIXELS = 1e-3, 0.5
#: Layers that stay in float32, as patterns for the module's path or the weight's name: attention (its weights multiply
#: Gram matrices), the first layer of the stem, position encodings, and the last layers of heads.
KEPT = ('*attn*', '*patch_embed.proj.0*', '*pos_embeder*', '*conv_seg*', '*rpn_cls*', '*rpn_reg*', '*retina_cls*',
        '*retina_reg*', '*fc_cls*', '*fc_reg*', '*conv_logits*')
#: Weights with fewer inputs or outputs than this gain nothing from int8.
LEAST_CHANNELS = 16


def describe(proto, metadata):
    """Write metadata into a model, and make the size of the labels an optional input."""
    from onnx import helper, numpy_helper
    helper.set_model_props(proto, metadata)
    proto.producer_name = 'xcit_dense'
    if any(value.name == 'size' for value in proto.graph.input):
        proto.graph.initializer.append(numpy_helper.from_array(torch.zeros(2, dtype=torch.int64).numpy(), 'size'))


def add_checksum(path):
    """Append a checksum to a file; `xcit_dense.runtime` compares it.

    It is the description of the model (field 6 of its protobuf), of which the last one counts. A program that changes
    the file writes it in another place, and then it is not compared.
    """
    data = path.read_bytes()
    path.write_bytes(b'%b2\x0ecrc32=%08x' % (data, zlib.crc32(data)))


def compare_file(path, predictor, task: str) -> tuple:
    """Return how far an exported file and its checkpoint differ: as a number like those of `MOST`, and as text.

    Args:
        path: The file.
        predictor: The predictor of the checkpoint.
        task: The task of the file, as for `xcit_dense.export.exporting.metadata_of`.

    Raises:
        ExportError: onnxruntime cannot open or run the file.
    """
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
    missing, total = 0, 0
    for size in _COMPARED:
        batch = images(*size)
        found = run(dict(image=batch))
        for i, sample in enumerate(predictions(predictor.model, batch)):
            expected, n = sample.pred_instances.numpy(), int(found['num'][i])
            boxes, scores, labels = found['dets'][i, :n, :4], found['dets'][i, :n, 4], found['labels'][i, :n]
            same = ((labels == expected.labels[:, None]) & (np.abs(scores - expected.scores[:, None]) <= _SCORE)
                    & (np.abs(boxes - expected.bboxes[:, None]).max(2) <= _PIXELS))
            alone = np.concatenate([expected.scores[~same.any(1)], scores[~same.any(0)]])
            missing += int((np.abs(alone - _edge(predictor.model, expected.scores)) > _SCORE).sum())
            total += n + int((~same.any(1)).sum())
    if not total:
        return 0., 'neither finds an object in them, which proves little. Compare both with `test`'
    return missing / total, f'{missing:,} of {counted(total, "objects")} found by only one of them'


def _edge(model, scores):
    """Return the score at which rounding decides what is found: the threshold, or the lowest score at the limit."""
    cfg = (model.roi_head if hasattr(model, 'roi_head') else model.bbox_head).test_cfg
    return scores.min() if len(scores) == cfg.max_per_img else cfg.get('score_thr', 0)


def quantise(source, target, images, kept=KEPT):
    """Write an int8 version of an exported file.

    Args:
        source: The exported file.
        target: The file to write; it gets the metadata of ``source``.
        images: Iterable of uint8 arrays (H, W, 3), RGB, resized by the file's rule. Memory holds one at a time.
        kept: Patterns of layers that stay in float32.

    Returns:
        The names of the quantised nodes.

    Raises:
        ConfigError: There are no layers to quantise.
    """
    import onnx  # both are slow to import, and optional
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    model = onnx.load(source)
    nodes = nodes_to_quantise(model, kept)
    if not nodes:
        raise ConfigError(f'{source} has no layers to quantise')
    feeds = _feeds(model, images)
    reader = SimpleNamespace(get_next=lambda: next(feeds, None))
    with errors_only():  # onnxruntime advises to preprocess the file, which would drop the names of its modules
        quantize_static(
            model, str(target), reader, QuantFormat.QDQ, op_types_to_quantize=sorted({node.op_type for node in nodes}),
            nodes_to_quantize=[node.name for node in nodes], per_channel=True, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
            # the outputs of these products stay in float32, for the op that adds the bias
            extra_options=dict(OpTypesToExcludeOutputQuantization=['MatMul', 'Gemm'], CalibMaxIntermediateOutputs=8))
    return [node.name for node in nodes]


@contextmanager
def errors_only():
    """Context in which only errors are logged."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def nodes_to_quantise(model, kept=KEPT):
    """Return the nodes of a graph (`onnx.ModelProto`) that `quantise` converts."""
    weights = {tensor.name: tensor.dims for tensor in model.graph.initializer}
    return [node for node in model.graph.node if node.name and _is_dense(node, weights)
            and not any(fnmatchcase(name, pattern) for name in (_module_of(node), node.input[1]) for pattern in kept)]


def _is_dense(node, weights):
    """Whether a node is a matrix product or a dense convolution with a fixed weight that is large enough."""
    if node.op_type not in ('MatMul', 'Gemm', 'Conv') or node.input[1] not in weights:
        return False
    groups = [attribute.i for attribute in node.attribute if attribute.name == 'group']
    shape = weights[node.input[1]]
    return len(shape) >= 2 and min(shape[:2]) >= LEAST_CHANNELS and groups in ([], [1])


def _module_of(node):
    """Return the path of the module that a node comes from, such as ``backbone.blocks.0.mlp.fc1``; '' if unknown."""
    found = [prop.value for prop in node.metadata_props if prop.key == 'namespace']
    parts = found[0].split('/')[:-1] if found else []  # the last part is the operation
    return parts[-1].partition(':')[0] if parts else ''


def _feeds(model, images):
    """Yield calibration images as inputs of a graph, and show progress."""
    fixed = {tensor.name for tensor in model.graph.initializer}
    target, = (value for value in model.graph.input if value.name not in fixed)
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    for image in map(np.asarray, tqdm(images, desc='calibrating', unit=' images')):
        if target.type.tensor_type.elem_type == 2:  # uint8
            yield {target.name: image[None]}
        else:
            mean, std = (np.array(json.loads(metadata[name]), np.float32) for name in ('mean', 'std'))
            yield {target.name: ((image.astype(np.float32) - mean) / std).transpose(2, 0, 1)[None]}
