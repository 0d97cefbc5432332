"""A trained model that is called from Python: images in, arrays out."""
import copy
import os
from functools import partial
from pathlib import Path
from typing import overload

import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import PixelData
from PIL import Image

from ..config.framework import framework_of
from ..config.loading import load_config
from ..errors import ConfigError, DataError
from ..files import OwnFiles
from ..text import counted, first_line, listed
from .big_images import BigImage
from .cut_masks import CutMasks
from .exported import config_of, is_exported, open_exported
from .predictor import build_predictor
from .results import Objects, Regions
from .tiled import Tiled, draw_objects, fill_labels, find_objects, sample_of_labels
from .tiling import tiling_of

#: For type checkers and editors, which then complete what a call returns.
AnyImage = str | os.PathLike | np.ndarray | Image.Image


def load(config, checkpoint=None, *, device=None, threshold: float = None, cfg_options: dict = None,
         dtype: str = 'float32', runtime: str = None):
    """Load a trained detector or segmentor, which predicts images like the tool ``predict``.

    Args:
        config: The config of its training: a file, a name from `xcit_dense.list_models`, the work dir of a run, or a
            `mmengine.Config`. Or an exported file (``.onnx``), which accepts only ``threshold`` and ``runtime`` as
            further arguments.
        checkpoint: Its weights: a path, an address, ``xcit://NAME``, or a work dir (its newest checkpoint). Optional
            if ``config`` is a work dir.
        device: For example ``'cuda:1'`` or ``'cpu'``. Default: the accelerator if there is one, otherwise the CPU.
        threshold: For a detector: objects with a lower score are dropped. Default: 0.3.
        cfg_options: Changes to the config, by dotted key.
        dtype: ``'bfloat16'`` computes in it if the device supports it, see `xcit_dense.predict.dtypes.set_dtype`.
        runtime: What runs an exported file: ``'onnxruntime'`` (the default) or ``'openvino'``.

    Returns:
        A `LoadedDetector` or a `LoadedSegmentor`.

    Raises:
        CheckpointError: The weights cannot be read or do not fit the config.
        ConfigError: There is no such config, device or type; the config is of a classifier (use
            `xcit_dense.predict.classify`); or a threshold is given for a segmentor.
        DataError: The config does not define how images are read.
        SetupError: The runtime is not installed.
    """
    if is_exported(config) or is_exported(checkpoint):
        others = dict(checkpoint=checkpoint, device=device, cfg_options=cfg_options)
        if given := [name for name, value in others.items() if value] + ['dtype'] * (dtype != 'float32'):
            raise ConfigError(f'load() does not accept {", ".join(given)} with an exported file. Use '
                              f'load({str(config if is_exported(config) else checkpoint)!r})')
        file = open_exported(config, runtime)
        return _loaded(config_of(file), file, threshold)
    if runtime is not None:
        raise ConfigError(f'runtime={runtime!r} works only with an exported file (.onnx); a checkpoint runs in torch')
    if checkpoint is None:
        if isinstance(config, (str, os.PathLike)) and not Path(config).exists():
            raise ConfigError(f'there is no work dir {Path(config).absolute()}. For a config, give the weights too: '
                              'load(config, checkpoint)')
        if isinstance(config, Config) or not Path(config).is_dir():
            raise ConfigError(f'{getattr(config, "filename", config)} is not a work dir, which would have both config '
                              'and weights. Give the weights too: load(config, checkpoint)')
        checkpoint = config
    if isinstance(config, Config):
        cfg = copy.deepcopy(config)
        cfg.merge_from_dict(cfg_options or {})
    else:
        source = _dumped_in(config) if Path(config).is_dir() else config
        cfg = load_config(source, cfg_options=cfg_options, pretrained=False)
    return _loaded(cfg, checkpoint, threshold, device=device, dtype=dtype)


def _loaded(cfg, checkpoint, threshold, **options):
    if framework_of(cfg) == 'mmseg':
        if threshold is not None:
            raise ConfigError('threshold works only with a detector; the result of a segmentor has a score per pixel')
        return LoadedSegmentor(build_predictor(cfg, checkpoint, **options))
    return LoadedDetector(build_predictor(cfg, checkpoint, **options), 0.3 if threshold is None else threshold)


def _dumped_in(work_dir):
    """Return the config that a training wrote into its work dir."""
    found = sorted(name for name in OwnFiles(work_dir, 'train').names() if name.endswith('.py')) or sorted(
        path.name for path in Path(work_dir).glob('*.py'))
    if len(found) != 1:
        what = f'has several configs: {", ".join(found)}' if found else 'has no config of a training'
        raise ConfigError(f'{work_dir} {what}. Name the config file: load(config, checkpoint)')
    return Path(work_dir, found[0])


class _Loaded:
    """What detectors and segmentors have in common."""

    def __init__(self, predictor):
        self._predictor = predictor
        #: The names of the classes, in the order of the labels.
        self.classes = tuple(predictor.classes.names)
        #: The model itself, in evaluation mode.
        self.model = predictor.model

    def __repr__(self):
        name = type(self.model).__name__
        device = getattr(next(self.model.parameters(), None), 'device', 'cpu')  # of an exported file
        classes = f'{counted(len(self.classes), "classes")}: {listed(self.classes)}'
        return f'<{type(self).__name__}: {name} on {device}, {classes}>'

    def _read(self, image, number, reader=None):
        """Read an image; errors about a file name it."""
        try:
            return (reader or self._predictor.reader).read(_as_given(image), number)
        except DataError:
            raise
        except Exception as error:  # of many types, depending on what is in the file
            if not isinstance(image, (str, os.PathLike)):
                raise
            raise DataError(f'{image} cannot be read: {first_line(error)}') from error

    def _call(self, images, batch_size, to_result, tiling=None, to_tiled_result=None):
        if batch_size < 1:
            raise ConfigError(f'batch_size must be at least 1, got {batch_size!r}')
        several = isinstance(images, (list, tuple))
        images, results = list(images) if several else [images], []
        if tiling:
            if batch_size > 1:
                raise ConfigError(f'batch_size={batch_size} cannot be used with tile: tiles are predicted one by one. '
                                  'Omit one of them')
            reader = Tiled(self._predictor, tiling).reader
            for number, image in enumerate(images):
                read = self._read(image, number, reader)
                if isinstance(read, BigImage):
                    results.append(to_tiled_result(read))
                else:
                    results.append(to_result(read.picture, self._predictor.samples([read])[0]))
            return results if several else results[0]
        for start in range(0, len(images), batch_size):
            batch = [self._read(image, number)
                     for number, image in enumerate(images[start:start + batch_size], start)]
            for image, sample in zip(batch, self._predictor.samples(batch), strict=True):
                results.append(to_result(image.picture, sample))
        return results if several else results[0]


class LoadedDetector(_Loaded):
    """A detector. Create it with `load`.

    Args:
        predictor: A `xcit_dense.predict.predictor.DetectionPredictor`.
        threshold: Objects with a lower score are dropped.
    """

    def __init__(self, predictor, threshold: float):
        super().__init__(predictor)
        self.threshold = threshold

    @overload
    def __call__(self, images: AnyImage, *, batch_size: int = ..., threshold: float | None = ...,
                 tile: int | None = ..., overlap: float | None = ...) -> Objects: ...

    @overload
    def __call__(self, images: list | tuple, *, batch_size: int = ..., threshold: float | None = ...,
                 tile: int | None = ..., overlap: float | None = ...) -> list[Objects]: ...

    def __call__(self, images, *, batch_size: int = 1, threshold: float = None, tile: int = None,
                 overlap: float = None):
        """Find the objects in an image, or in each image of a list.

        Args:
            images: A path; an array, (H, W, 3) RGB (not OpenCV's BGR) or (H, W) grey, uint8; a PIL image; or a list or
                tuple of these.
            batch_size: How many images are read for a batch, whose images of one size go through the model at once.
                More are faster on a GPU. Results may differ in the last digits from those of one image at a time.
            threshold: Overrides the threshold of `load`.
            tile: Side of a square tile in pixels. Images larger than a tile are predicted tile by tile, and the
                objects of the tiles are merged.
            overlap: The least share of a tile that the next one covers too. Default: 0.2.

        Returns:
            `Objects`, or a list of them.

        Raises:
            ConfigError: ``batch_size``, ``threshold``, ``tile`` or ``overlap`` is invalid.
            DataError: A file cannot be read, or an argument is not an image.
        """
        threshold = self.threshold if threshold is None else threshold
        if np.isnan(threshold):  # no score is above it
            raise ConfigError(f'threshold must be a number, got {threshold}')
        return self._call(images, batch_size, partial(self._to_result, threshold), tiling_of(tile, overlap),
                          partial(self._to_tiled_result, threshold))

    def _to_result(self, threshold, picture, sample):
        sample = sample.cpu()
        sample.pred_instances = sample.pred_instances[sample.pred_instances.scores >= threshold]
        found = sample.pred_instances.numpy()
        masks = found.masks.astype(bool) if 'masks' in found else None
        return Objects(found.bboxes, found.scores, found.labels, tuple(self.classes[i] for i in found.labels), masks,
                       partial(self._predictor.drawing.draw, picture, sample, pred_score_thr=-1.))

    def _to_tiled_result(self, threshold, image):
        finds, has_masks = find_objects(self._predictor, image)
        finds = [find for find in finds if find.score >= threshold]
        size, labels = (image.height, image.width), np.array([find.label for find in finds], np.int64)
        masks = CutMasks([find.mask for find in finds], *size) if has_masks else None
        return Objects(np.array([find.box for find in finds], np.float32).reshape(-1, 4),
                       np.array([find.score for find in finds], np.float32), labels,
                       tuple(self.classes[i] for i in labels), masks,
                       partial(draw_objects, self._predictor.drawing, image.picture(), finds, size))


class LoadedSegmentor(_Loaded):
    """A segmentor. Create it with `load`."""

    @overload
    def __call__(self, images: AnyImage, *, batch_size: int = ..., scores: bool = ..., tile: int | None = ...,
                 overlap: float | None = ...) -> Regions: ...

    @overload
    def __call__(self, images: list | tuple, *, batch_size: int = ..., scores: bool = ..., tile: int | None = ...,
                 overlap: float | None = ...) -> list[Regions]: ...

    def __call__(self, images, *, batch_size: int = 1, scores: bool = True, tile: int = None, overlap: float = None):
        """Predict the class of each pixel of an image, or of each image of a list.

        Args:
            images: As for `LoadedDetector`.
            batch_size: As for `LoadedDetector`.
            scores: Whether to return the probabilities of the labels; without them it is faster.
            tile: As for `LoadedDetector`; where tiles overlap, their scores are blended.
            overlap: As for `LoadedDetector`.

        Returns:
            `Regions`, or a list of them.

        Raises:
            ConfigError: As for `LoadedDetector`.
            DataError: As for `LoadedDetector`.
        """
        return self._call(images, batch_size, partial(self._to_result, scores), tiling_of(tile, overlap),
                          partial(self._to_tiled_result, scores))

    def _to_result(self, with_scores, picture, sample):
        labels, logits = sample.pred_sem_seg.data, sample.get('seg_logits')
        scores = _scores(logits.data, labels) if with_scores and logits is not None else None
        if with_scores and 'label_scores' in sample:  # of an exported file
            scores = sample.label_scores.data[0].numpy()
        drawn = type(sample)(metainfo=sample.metainfo, pred_sem_seg=PixelData(data=labels.cpu()))
        return Regions(labels[0].cpu().numpy(), scores, partial(self._predictor.drawing.draw, picture, drawn))

    def _to_tiled_result(self, with_scores, image):
        labels = np.empty((image.height, image.width), np.int64)
        scores = np.empty(labels.shape, np.float32) if with_scores else None
        if not fill_labels(self._predictor, image, labels, _scores, scores):
            scores = None
        picture = image.picture()
        drawn = sample_of_labels(labels, picture)
        return Regions(labels, scores, partial(self._predictor.drawing.draw, picture, drawn))


def _as_given(image):
    """Return an image if it is of a type that can be read."""
    if not isinstance(image, (str, os.PathLike, np.ndarray, Image.Image)):
        fix = ('image.numpy(), as (H, W, 3), RGB, uint8' if isinstance(image, torch.Tensor) else
               'list(images)' if hasattr(image, '__iter__') and not isinstance(image, bytes) else
               'its path, or the result of PIL.Image.open')
        raise DataError('an image must be a path, an array (H, W, 3) or a PIL image; several must be a list or tuple; '
                        f'got {type(image).__name__}. Pass {fix}')
    return image


def _scores(logits, labels):
    """Return the probabilities (H, W) of labels (1, H, W); a single output is already the probability of label 1."""
    if len(logits) == 1:
        found = torch.where(labels > 0, logits, 1 - logits)[0]
    else:
        best = logits.max(0).values
        found = 1 / (logits - best).exp_().sum(0)
    return found.float().cpu().numpy()
