"""Runs a file written by `python -m xcit_dense export`, without torch or OpenMMLab::

    from xcit_dense.runtime import Model
    found = Model('model.onnx')('image.jpg')

This file works on its own: you can copy it next to your program. It needs NumPy, and onnxruntime or openvino. If OpenCV
is installed, it reads and resizes images, as for the checkpoint; otherwise Pillow reads, and NumPy resizes identically.
"""
import json
import threading
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import numpy as np

try:
    import cv2
except ImportError:
    cv2 = None


class ModelError(RuntimeError):
    """A file cannot be run: it is missing, damaged or of another kind, or a package is missing."""


class ImageError(ValueError):
    """An argument is not an image, or cannot be read."""


@dataclass(frozen=True, eq=False)
class Objects:
    """The objects in an image, highest score first."""
    boxes: np.ndarray  #: (n, 4) float32: left, top, right, bottom in pixels of the image
    scores: np.ndarray  #: (n,) float32, from 0 to 1
    labels: np.ndarray  #: (n,) int64: indices into `Model.classes`
    names: tuple  #: the class names of the n objects
    masks: np.ndarray | None  #: (n, H, W) bool, or None if the model has none

    def __len__(self):
        return len(self.scores)


@dataclass(frozen=True, eq=False)
class Regions:
    """The class of each pixel of an image."""
    labels: np.ndarray  #: (H, W) uint8, or int32 with more than 256 classes: indices into `Model.classes`
    scores: np.ndarray | None  #: (H, W) float32: the probability of the label; None without ``export --scores``


class Model:
    """An exported model. It may be called from several threads.

    Args:
        path: The file.
        runtime: ``'onnxruntime'`` or ``'openvino'``.
        threads: How many threads compute. Default: as many as the runtime chooses.

    Raises:
        ModelError: There is no such file or runtime, or the file is damaged, from another program or of another format.
    """

    def __init__(self, path, runtime: str = 'onnxruntime', threads: int = None):
        if runtime not in _RUNTIMES:
            raise ModelError(f'runtime must be one of {", ".join(_RUNTIMES)}, got {runtime!r}')
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise ModelError(f'threads must be a whole number, at least 1, got {threads!r}')
        if not Path(path).is_file():
            raise ModelError(f'there is no file {Path(path).absolute()}')
        try:
            data = Path(path).read_bytes()
            if data[-16:-8] == b'2\x0ecrc32=' and data[-8:] != b'%08x' % zlib.crc32(memoryview(data)[:-16]):
                raise ValueError('its checksum is wrong')
            self._run, found = _RUNTIMES[runtime](str(path), threads)
        except ImportError as error:
            raise ModelError(f'{runtime} cannot be imported ({error}): pip install {runtime}') from error
        except Exception as error:  # each runtime has its own types
            reason = str(error).strip().partition('\n')[0].rpartition(' : ')[2]
            raise ModelError(f'{path} is damaged or not an ONNX file ({reason}). Copy it again') from error
        if not found.keys() >= {'xcit_dense', 'task'}:
            raise ModelError(f'{path} was not written by `python -m xcit_dense export`')
        if found['xcit_dense'] != '1':
            raise ModelError(f'{path} has format version {found["xcit_dense"]}, but this runtime.py reads version 1. '
                             'Use runtime.py of the xcit_dense that exported the file')
        #: The metadata of the file.
        self.metadata = {key: _parsed(key, value) for key, value in found.items()}
        #: ``'detection'``, ``'segmentation'`` or ``'backbone'``; and the names of the classes in the order of labels.
        self.task, self.classes = self.metadata['task'], tuple(self.metadata.get('classes') or ())

    def __call__(self, image, threshold: float = 0.3):
        """Return `Objects` with scores of at least ``threshold``, or `Regions`.

        Args:
            image: A path; an array of uint8, (H, W, 3) in RGB (not OpenCV's BGR) or grey (H, W); or a PIL image.
            threshold: For detectors.

        Raises:
            ImageError: ``image`` is not an image, or cannot be read.
        """
        if self.task == 'backbone':
            raise ModelError('the file holds only a backbone. Use run(images), which returns its levels')
        picture = self.read(image)
        given, size = self.resize(picture), picture.shape[:2]
        outputs = self.run(given[None], size)
        if self.task == 'detection':
            return self.objects(outputs, given.shape[:2], size, threshold)
        return Regions(outputs['labels'][0], outputs['scores'][0] if 'scores' in outputs else None)

    def prepare(self, image) -> np.ndarray:
        """Return an image as the file's input ``image`` needs it: read and resized, (h, w, 3) uint8."""
        return self.resize(self.read(image))

    def read(self, image) -> np.ndarray:
        """Return an image, of any type that `__call__` accepts, as an array (H, W, 3) uint8 in RGB."""
        turn = self.metadata.get('turns', True)
        if isinstance(image, str) or hasattr(image, '__fspath__'):
            image = _read_file(image, turn)
        elif hasattr(image, 'convert'):
            image = _array_of(image, turn)
        if not isinstance(image, np.ndarray):
            raise ImageError(f'an image must be a path, an array (H, W, 3) or a PIL image, got {type(image).__name__}')
        if image.dtype != np.uint8 or image.ndim < 2 or image.shape[2:] not in ((), (1, ), (3, )) or not image.size:
            raise ImageError('an image must be an array of uint8 from 0 to 255, (H, W, 3) in RGB or (H, W) in grey; '
                             f'got {image.shape} of {image.dtype}')
        return np.ascontiguousarray(np.broadcast_to(image.reshape(*image.shape[:2], -1), (*image.shape[:2], 3)))

    def resize(self, picture) -> np.ndarray:
        """Return an image (H, W, 3) resized by the rule of the config."""
        rule, (height, width) = self.metadata.get('resize', dict(rule='none')), picture.shape[:2]
        size = rule.get('size', (width, height))
        if rule['rule'] == 'keep_ratio':
            scale = min(max(rule['scale']) / max(height, width), min(rule['scale']) / min(height, width))
            size = int(width * scale + 0.5), int(height * scale + 0.5)
            if not min(size):
                raise ImageError(f'an image of {width} x {height} pixels is too narrow to be resized to {size}')
        return resize_linear(picture, *size)

    def run(self, images, size=(0, 0)) -> dict:
        """Return the raw outputs of the file: arrays by name.

        Args:
            images: (B, h, w, 3) uint8 in RGB, as from `prepare`; for a backbone (B, 3, H, W) float32, normalised.
            size: For a segmentor: height and width of the labels. Default: those of ``images``.
        """
        kind, axis, shape = (np.float32, 1, '(B, 3, H, W)') if self.task == 'backbone' else (
            np.uint8, 3, '(B, H, W, 3)')
        images = np.ascontiguousarray(images)
        if images.dtype != kind or images.ndim != 4 or images.shape[axis] != 3 or not images.size:
            raise ImageError(f'the model needs {np.dtype(kind)} {shape}, got {images.dtype} {images.shape}')
        sizes = dict(size=np.array(size, np.int64)) if self.task == 'segmentation' else {}
        return self._run({'images' if self.task == 'backbone' else 'image': images, **sizes})

    def objects(self, outputs, given, size, threshold: float = 0.0, place: int = 0) -> Objects:
        """Return the objects of one image of a batch, in pixels of the image before resizing.

        Args:
            outputs: The result of `run`, of which the image is at a ``place``.
            given, size: Height and width of the resized images of the batch, and of this image before resizing.
            threshold: Objects with a lower score are dropped.
        """
        keep = np.flatnonzero(outputs['dets'][place, :outputs['num'][place], 4] >= threshold)
        dets, labels = outputs['dets'][place, keep], outputs['labels'][place, keep]
        boxes = dets[:, :4] / np.array([given[1] / size[1], given[0] / size[0]] * 2, np.float32)
        masks = paste_masks(outputs['masks'][place, keep], boxes, *size, self.metadata['mask_threshold']
                            ) if 'masks' in outputs else None
        return Objects(boxes, dets[:, 4], labels, tuple(self.classes[i] for i in labels), masks)


def resize_linear(image, width, height) -> np.ndarray:
    """Return an image (H, W, 3) uint8 resized exactly as cv2.resize does with INTER_LINEAR."""
    if cv2:
        return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)
    if image.shape[:2] == (2 * height, 2 * width):  # OpenCV averages four pixels
        four = image.reshape(height, 2, width, 2, 3).sum((1, 3), dtype=np.uint16)
        return ((four + 2) >> 2).astype(np.uint8)
    (rows, down), (columns, across) = map(_between, image.shape[:2], (height, width))
    across[(columns < 0) | (columns >= image.shape[1] - 1)] = 2048, 0  # at the borders only one column, as OpenCV
    pairs = np.clip([columns, columns + 1], 0, image.shape[1] - 1)
    needed, places = np.unique(np.clip([rows, rows + 1], 0, image.shape[0] - 1), return_inverse=True)
    lines = image[needed]
    lines = (lines[:, pairs[0]] * across[:, :1] + lines[:, pairs[1]] * across[:, 1:]) >> 4
    above, below = (lines[which] * share[:, None, None] >> 16
                    for which, share in zip(places.reshape(2, -1), down.T, strict=True))
    return ((above + below + 2) >> 2).astype(np.uint8)


def _between(old, new):
    """Return the first of the two pixels that each new one is between, and the weights of both in 1/2048."""
    at = ((np.arange(new) + 0.5) * (1 / (new / old)) - 0.5).astype(np.float32)
    share = at - np.floor(at)
    return np.floor(at).astype(int), np.rint(np.stack([1 - share, share], 1) * np.float32(2048)).astype(np.int32)


def paste_masks(masks, boxes, height, width, threshold: float = 0.5) -> np.ndarray:
    """Return masks (n, h, w) of boxes (n, 4) as masks (n, height, width) bool of the image, like mmdet."""
    pasted = np.zeros((len(boxes), height, width), bool)
    axes = *places_in_masks(*boxes.T[::2], width), *places_in_masks(*boxes.T[1::2], height)
    for mask, whole, left, w, x, top, h, y in zip(masks, pasted, *axes, strict=True):
        for columns, values in sample_mask(mask, x[1:w + 1], y[1:h + 1]):
            whole[top:top + h, left:left + w][:, columns] = threshold <= values.T
    return pasted


def places_in_masks(low, high, limit, beyond=1):
    """Return the pixels of boxes along an axis: the first and how many (n, ), and where each is in the mask of its box,
    from -1 to 1 as in mmdet (n, 1 + most + 1), between 2 (outside) before the first and 2 after the last."""
    first, end = np.maximum(np.floor(low) - beyond, 0), np.minimum(np.ceil(high) + beyond, limit)
    real = np.isfinite(low + high) & (first < end)
    first, count = (np.where(real, values, 0).astype(int) for values in (first, end - first))
    pixels, middle = np.arange(-1, count.max(initial=0) + 1), np.float32(0.5)
    with np.errstate(all='ignore'):
        places = ((first[:, None] + pixels).astype(np.float32) + middle - low[:, None]) / (high - low)[:, None] * 2 - 1
    places[np.isinf(places)] = 0  # of a box of size 0, as mmdet does
    places[(pixels < 0) | (pixels >= count[:, None])] = 2
    return first, count, places


def sample_mask(mask, x, y):
    """Yield columns (a slice) and the values there of a mask (h, w) at places x and y, from -1 to 1, 0 outside."""
    down, across = (np.maximum(1 - np.abs(((places + 1) * np.float32(cells) - 1)[:, None] / 2 - np.arange(
        cells, dtype=np.float32)), 0) for places, cells in zip((y, x), mask.shape, strict=True))
    rows, step = (down @ mask).T, (1 << 22) // max(len(y), 1) + 1  # columns at a time, for memory
    for start in range(0, len(x), step):
        yield slice(start, start + step), across[start:start + step] @ rows


def _read_file(path, turn):
    if not Path(path).is_file():
        raise ImageError(f'there is no image {Path(path).absolute()}')
    try:
        if cv2:
            how = cv2.IMREAD_COLOR if turn else cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
            image = cv2.imdecode(np.fromfile(path, np.uint8), how)
            if image is None:
                raise ValueError('OpenCV cannot decode it')
            return image[..., ::-1]
        with import_module('PIL.Image').open(path) as image:
            return _array_of(image, turn)
    except ImportError as error:
        raise ModelError('reading image files needs OpenCV or Pillow: pip install pillow') from error
    except Exception as error:  # of many types
        raise ImageError(f'{path} cannot be read as an image: {str(error).strip()}') from error


def _array_of(image, turn):
    """Return a PIL image as an array; with ``turn``, rotated as its EXIF tag says."""
    if image.mode[:1] in 'IF':
        raise ImageError(f'a PIL image of mode {image.mode} has more than 8 bits. Scale it as in training, to uint8')
    image = import_module('PIL.ImageOps').exif_transpose(image) if turn else image
    return np.asarray(image.convert('RGB'))


def open_onnxruntime(path, threads: int = None):
    """Return a function from inputs to outputs by name, and the metadata as strings."""
    onnxruntime = import_module('onnxruntime')
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # it warns about the optional input
    options.intra_op_num_threads = threads or 0
    session = onnxruntime.InferenceSession(path, options, providers=['CPUExecutionProvider'])
    names = [output.name for output in session.get_outputs()]
    return (lambda feeds: dict(zip(names, session.run(names, feeds), strict=True)),
            session.get_modelmeta().custom_metadata_map)


def _open_openvino(path, threads):
    core, local = openvino_core(), threading.local()
    model = core.read_model(path)
    metadata = dict(model.get_rt_info('framework').value) if model.has_rt_info('framework') else {}
    if metadata.get('task') == 'segmentation':  # OpenVINO makes an optional input a constant
        constant = next(node.output(0) for node in model.get_ops() if 'size' in node.output(0).get_names())
        size = import_module('openvino.opset13').parameter([2], np.int64)
        constant.set_names(set())
        size.output(0).set_names({'size'})
        constant.replace(size.output(0))
        model.add_parameters([size])
        model.validate_nodes_and_infer_types()
    # in float32: otherwise it uses bfloat16 if the processor supports it
    settings = dict(INFERENCE_PRECISION_HINT='f32', PERFORMANCE_HINT='LATENCY')
    compiled = core.compile_model(model, 'CPU', settings | (dict(INFERENCE_NUM_THREADS=threads) if threads else {}))

    def run(feeds):
        if not hasattr(local, 'request'):  # one per thread
            local.request = compiled.create_infer_request()
        return {output.any_name: array for output, array in local.request.infer(feeds).items()}

    return run, metadata


# one for all: each Core takes over the signal stack and later restores the previous owner, which may be gone by then
openvino_core = cache(lambda: import_module('openvino').Core())
_RUNTIMES = dict(onnxruntime=open_onnxruntime, openvino=_open_openvino)


def _parsed(key, value):
    with suppress(ValueError):
        return value if key in ('task', 'config', 'checkpoint_sha256') else json.loads(value)
    return value
