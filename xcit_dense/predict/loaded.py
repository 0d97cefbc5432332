"""A trained model to be called from Python: images in, arrays out."""
import copy
import os
from functools import partial
from pathlib import Path

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
from .predictor import build_predictor
from .results import Objects, Regions


def load(config, checkpoint=None, *, device=None, threshold: float = None, cfg_options: dict = None):
    """Return a trained detector or segmentor, which predicts images as the tool ``predict`` does.

    Args:
        config: The config of its training: a file, a name of `xcit_dense.list_models`, the work dir of a run, or a
            `mmengine.Config`.
        checkpoint: Its weights: a path, an address, ``xcit://NAME``, or a work dir (its newest). May be left out where
            ``config`` is a work dir.
        device: Such as ``'cuda:1'`` or ``'cpu'``; by default the accelerator that is there.
        threshold: Of a detector: objects with a lower score are left out; by default 0.3.
        cfg_options: Changes of the config, by dotted key.

    Returns:
        A `LoadedDetector` or a `LoadedSegmentor`.

    Raises:
        CheckpointError: The weights cannot be read or do not fit the config.
        ConfigError: There is no such config, or it is of a classifier, which `xcit_dense.predict.classify` calls; there
            is no such device; or a segmentor is given a threshold.
        DataError: The config does not say how images are read.
    """
    if checkpoint is None:
        if isinstance(config, (str, os.PathLike)) and not Path(config).exists():
            raise ConfigError(f'there is no work dir {Path(config).absolute()}; a config needs weights beside it: '
                              'load(config, checkpoint)')
        if isinstance(config, Config) or not Path(config).is_dir():
            raise ConfigError(f'{getattr(config, "filename", config)} is no work dir of a run, which alone tells both '
                              'config and weights: load(config, checkpoint)')
        checkpoint = config
    if isinstance(config, Config):
        cfg = copy.deepcopy(config)
        cfg.merge_from_dict(cfg_options or {})
    else:
        source = _dumped_in(config) if Path(config).is_dir() else config
        cfg = load_config(source, cfg_options=cfg_options, pretrained=False)
    if framework_of(cfg) == 'mmseg':
        if threshold is not None:
            raise ConfigError('threshold goes with a detector; what a segmentor gives has scores of each pixel')
        return LoadedSegmentor(build_predictor(cfg, checkpoint, device=device))
    return LoadedDetector(build_predictor(cfg, checkpoint, device=device), 0.3 if threshold is None else threshold)


def _dumped_in(work_dir):
    """Return the config that a training wrote into its work dir."""
    found = sorted(name for name in OwnFiles(work_dir, 'train').names() if name.endswith('.py')) or sorted(
        path.name for path in Path(work_dir).glob('*.py'))
    if len(found) != 1:
        what = f'holds several configs: {", ".join(found)}' if found else 'holds no config that a training wrote'
        raise ConfigError(f'{work_dir} {what}; name the file: load(config, checkpoint)')
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
        name, device = type(self.model).__name__, next(self.model.parameters()).device
        classes = f'{counted(len(self.classes), "classes")}: {listed(self.classes)}'
        return f'<{type(self).__name__}: {name} on {device}, {classes}>'

    def _read(self, image, number):
        """Read an image; what goes wrong with a file names it."""
        try:
            return self._predictor.reader.read(_as_given(image), number)
        except DataError:
            raise
        except Exception as error:  # of many types, for whatever is in a file
            if not isinstance(image, (str, os.PathLike)):
                raise
            raise DataError(f'{image} cannot be read: {first_line(error)}') from error

    def _call(self, images, batch_size, to_result):
        if batch_size < 1:
            raise ConfigError(f'batch_size must be a number from 1, got {batch_size!r}')
        several = isinstance(images, (list, tuple))
        images, results = list(images) if several else [images], []
        for start in range(0, len(images), batch_size):
            batch = [self._read(image, number)
                     for number, image in enumerate(images[start:start + batch_size], start)]
            for image, sample in zip(batch, self._predictor.samples(batch), strict=True):
                results.append(to_result(image.picture, sample))
        return results if several else results[0]


class LoadedDetector(_Loaded):
    """A detector. Use `load`.

    Args:
        predictor: A `xcit_dense.predict.predictor.DetectionPredictor`.
        threshold: Objects with a lower score are left out.
    """

    def __init__(self, predictor, threshold: float = 0.3):
        super().__init__(predictor)
        self.threshold = threshold

    def __call__(self, images, *, batch_size: int = 1, threshold: float = None):
        """Find the objects in an image, or in each of a list.

        Args:
            images: A path; an array (H, W, 3), RGB (not OpenCV's BGR), uint8, or (H, W) where it is grey; a PIL image;
                or a list or tuple of these.
            batch_size: How many go through the model at once. More is faster on a GPU; the results may differ in the
                last digits from those of one image at a time, as with the padding of images of different sizes.
            threshold: In place of that of `load`.

        Returns:
            `Objects`, or a list of them.

        Raises:
            DataError: A file cannot be read, an array is no image, or it is something else.
        """
        threshold = self.threshold if threshold is None else threshold
        return self._call(images, batch_size, partial(self._to_result, threshold))

    def _to_result(self, threshold, picture, sample):
        sample = sample.cpu()
        sample.pred_instances = sample.pred_instances[sample.pred_instances.scores >= threshold]
        found = sample.pred_instances.numpy()
        masks = found.masks.astype(bool) if 'masks' in found else None
        return Objects(found.bboxes, found.scores, found.labels, tuple(self.classes[i] for i in found.labels), masks,
                       partial(self._predictor.drawing.draw, picture, sample, pred_score_thr=-1.))


class LoadedSegmentor(_Loaded):
    """A segmentor. Use `load`."""

    def __call__(self, images, *, batch_size: int = 1, scores: bool = True):
        """Say which class each pixel of an image is of, or of each of a list.

        Args:
            images: As for `LoadedDetector`.
            batch_size: Likewise.
            scores: Whether to say how sure the labels are; without it there is less to compute.

        Returns:
            `Regions`, or a list of them.

        Raises:
            DataError: As for `LoadedDetector`.
        """
        return self._call(images, batch_size, partial(self._to_result, scores))

    def _to_result(self, with_scores, picture, sample):
        labels, logits = sample.pred_sem_seg.data, sample.get('seg_logits')
        scores = _scores(logits.data, labels) if with_scores and logits is not None else None
        drawn = type(sample)(metainfo=sample.metainfo, pred_sem_seg=PixelData(data=labels.cpu()))
        return Regions(labels[0].cpu().numpy(), scores, partial(self._predictor.drawing.draw, picture, drawn))


def _as_given(image):
    """Return an image that is of a kind that can be read."""
    if not isinstance(image, (str, os.PathLike, np.ndarray, Image.Image)):
        mend = ('image.numpy(), as (H, W, 3), RGB, uint8' if isinstance(image, torch.Tensor) else
                'list(images)' if hasattr(image, '__iter__') and not isinstance(image, bytes) else
                'its path, or what PIL.Image.open gives')
        raise DataError('an image is a path, an array (H, W, 3) or a PIL image, and several are a list or tuple of '
                        f'these; got {type(image).__name__}: give {mend}')
    return image


def _scores(logits, labels):
    """Return the probabilities (H, W) of labels (1, H, W); a single output is one already, that of label 1."""
    if len(logits) == 1:
        found = torch.where(labels > 0, logits, 1 - logits)[0]
    else:
        best = logits.max(0).values
        found = 1 / (logits - best).exp_().sum(0)
    return found.float().cpu().numpy()
