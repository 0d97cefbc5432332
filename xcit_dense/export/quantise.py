"""An exported file in int8: static quantisation with calibration images.

Matrix products and dense convolutions with fixed weights are quantised: weights per channel, inputs with one range,
which is measured on the calibration images. Everything else stays in float32: norms, softmax, GELU, Gram matrices and
what is computed from them, depthwise convolutions, and the layers that `KEPT` names.
"""
import json
import logging
import tempfile
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from tqdm import tqdm

from ..errors import ConfigError, DataError

#: Layers that stay in float32, as patterns for the module's path or the weight's name: attention (its weights multiply
#: Gram matrices), the first layer of the stem, position encodings, and the last layers of heads.
KEPT = ('*attn*', '*patch_embed.proj.0*', '*pos_embeder*', '*conv_seg*', '*rpn_cls*', '*rpn_reg*', '*retina_cls*',
        '*retina_reg*', '*fc_cls*', '*fc_reg*', '*conv_logits*')
#: Weights with fewer inputs or outputs than this gain nothing from int8.
LEAST_CHANNELS = 16
#: The outputs of these products stay in float32, for the op that adds the bias.
_FLOAT_OUTPUTS = ['MatMul', 'Gemm']


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
        DataError: There are no images.
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
    # onnxruntime advises to preprocess the file, which would drop the names of its modules
    with tempfile.TemporaryDirectory(dir=Path(target).parent) as folder, errors_only():
        written = Path(folder, 'model.onnx')
        quantize_static(
            model, str(written), reader, QuantFormat.QDQ, op_types_to_quantize=sorted({node.op_type for node in nodes}),
            nodes_to_quantize=[node.name for node in nodes], per_channel=True, activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8, calibrate_method=CalibrationMethod.MinMax,
            extra_options=dict(OpTypesToExcludeOutputQuantization=_FLOAT_OUTPUTS, CalibMaxIntermediateOutputs=8))
        written.replace(target)
    return [node.name for node in nodes]


@contextmanager
def errors_only(*names):
    """Context in which loggers log only errors; without names the root logger."""
    loggers = [logging.getLogger(name) for name in names or (None, )]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


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
    """Yield calibration images as inputs of a graph, and show progress.

    Raises:
        DataError: There are no images.
    """
    fixed = {tensor.name for tensor in model.graph.initializer}
    target, = (value for value in model.graph.input if value.name not in fixed)
    metadata = {prop.key: prop.value for prop in model.metadata_props}
    image = None
    for image in map(np.asarray, tqdm(images, desc='calibrating', unit=' images')):
        if target.type.tensor_type.elem_type == 2:  # uint8
            yield {target.name: image[None]}
        else:
            mean, std = (np.array(json.loads(metadata[name]), np.float32) for name in ('mean', 'std'))
            yield {target.name: ((image.astype(np.float32) - mean) / std).transpose(2, 0, 1)[None]}
    if image is None:
        raise DataError('there are no calibration images: int8 needs images like those that the model will see')
