"""A trained model that is called from Python: images in, arrays out."""
import copy
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from mmengine.config import Config

from .._utils.text import counted, listed
from ..config.loading import load_config
from ..config.tasks import task_of
from ..errors import ConfigError, SetupError
from ..runtime import Objects as Found
from ..runtime import Regions as Labelled
from ..train.work_dirs import config_of_run
from .merging import CutMasks
from .models import config_of, is_exported, open_exported
from .predictor import build_predictor
from .reading import BigImage
from .tiles import scores_of, tiling_of


def load(config, checkpoint=None, *, device=None, threshold: float = None, cfg_options: dict = None,
         dtype: str = 'float32', runtime: str = None):
    """Load a trained detector or segmentor, which predicts images like the tool ``predict``.

    Args:
        config: The config of its training: a file, a name from `xcit_dense.list_models`, the work dir of a run, or a
            `mmengine.Config`. Or an exported file (``.onnx``), which accepts only ``threshold`` and ``runtime`` as
            further arguments.
        checkpoint: Its weights: a path, an address, ``xcit://NAME``, or a work dir (its best checkpoint). Optional
            if ``config`` is a work dir.
        device: For example ``'cuda:1'`` or ``'cpu'``. Default: the accelerator if there is one, otherwise the CPU.
        threshold: For a detector: objects with a lower score are dropped. Default: 0.3.
        cfg_options: Changes to the config, by dotted key.
        dtype: ``'bfloat16'`` computes in it if the device supports it, see `xcit_dense.predict.models.set_dtype`.
        runtime: What runs an exported file: ``'onnxruntime'`` (the default) or ``'openvino'``.

    Returns:
        A `LoadedDetector` or a `LoadedSegmentor`.

    Raises:
        CheckpointError: The weights cannot be read or do not fit the config.
        ConfigError: There is no such config or type; the config is of a classifier (use
            `xcit_dense.predict.classify`); or a threshold is given for a segmentor.
        DataError: The config does not define how images are read.
        RuntimeError: There is no such device.
        SetupError: The runtime is not installed.
    """
    if is_exported(config) or is_exported(checkpoint):
        if checkpoint or device or cfg_options or dtype != 'float32':
            raise ConfigError('with an exported file, load() accepts only threshold and runtime as further arguments: '
                              'load(FILE)')
        file = open_exported(config, runtime)
        cfg = config_of(file)
        return task_of(cfg).part('loaded')(build_predictor(cfg, file), threshold)
    if runtime is not None:
        raise ConfigError(f'runtime={runtime!r} works only with an exported file (.onnx); a checkpoint runs in torch')
    if checkpoint is None:
        if isinstance(config, Config) or not Path(config).is_dir():
            raise ConfigError(f'there is no work dir {getattr(config, "filename", config)} with config and weights. '
                              'For a config, give the weights too: load(config, checkpoint)')
        checkpoint = config
    if isinstance(config, Config):
        cfg = copy.deepcopy(config)
        cfg.merge_from_dict(cfg_options or {})
    else:
        source = config_of_run(config) if Path(config).is_dir() else config
        cfg = load_config(source, cfg_options=cfg_options, pretrained=False)
    predictor = build_predictor(cfg, checkpoint, device=device, dtype=dtype, given=cfg_options or ())
    return task_of(cfg).part('loaded')(predictor, threshold)


@dataclass(frozen=True, eq=False, repr=False)
class Objects(Found):
    """The objects that a detector finds in an image, highest score first.

    Args:
        boxes: (n, 4) float32: left, top, right, bottom in pixels of the image.
        scores: (n,) float32, from 0 to 1.
        labels: (n,) int64: indices into ``classes`` of the model.
        names: The class names of the n objects.
        masks: (n, H, W) bool, or None if the model has none. For an image that was predicted in tiles, a
            `xcit_dense.predict.merging.CutMasks`: ``masks[i]`` is one mask, ``numpy.asarray(masks)`` all of them.
    """
    _draw: callable = None

    def __repr__(self):
        found = [f'{count} {name}' for name, count in Counter(self.names).most_common()]
        masks = 'without masks' if vars(self)['masks'] is None else 'with masks'
        return f'<{counted(len(self), "objects")} {masks}{": " if found else ""}{listed(found)}>'

    def draw(self) -> np.ndarray:
        """Return the image with all these objects drawn: RGB (H, W, 3) uint8."""
        return self._draw()

    def to_supervision(self):
        """Return ``supervision.Detections``, with the names as ``data['class_name']``.

        Raises:
            SetupError: The package supervision is not installed.
        """
        try:
            import supervision
        except ImportError as error:
            raise SetupError('to_supervision needs the package supervision: pip install supervision') from error
        return supervision.Detections(
            xyxy=self.boxes, mask=None if self.masks is None else np.asarray(self.masks), confidence=self.scores,
            class_id=self.labels, data=dict(class_name=np.array(self.names, dtype=str)))


def _read_masks(found):
    """Make an array (n, H, W) of the masks when somebody reads them."""
    masks = vars(found)['masks']
    if masks is not None and not isinstance(masks, CutMasks):
        masks = vars(found)['masks'] = np.asarray(masks, bool)
    return masks


Objects.masks = property(_read_masks, lambda found, masks: vars(found).update(masks=masks))


@dataclass(frozen=True, eq=False, repr=False)
class Regions(Labelled):
    """The prediction of a segmentor for each pixel of an image.

    Args:
        labels: (H, W) int64: indices into ``classes`` of the model.
        scores: (H, W) float32: the probability of the label by softmax. None if not requested, or if the image is so
            large that the model does not keep the scores of all classes.
    """
    _draw: callable = None

    def __repr__(self):
        height, width = self.labels.shape
        return f'<labels of {height} x {width} pixels: {counted(len(np.unique(self.labels)), "classes")}>'

    def draw(self) -> np.ndarray:
        """Return the image with the colours of the classes over it: RGB (H, W, 3) uint8."""
        return self._draw()


class _Loaded:
    """What detectors and segmentors have in common."""

    def __init__(self, predictor):
        self._predictor = predictor
        #: The names of the classes, in the order of the labels.
        self.classes = tuple(predictor.classes.names)
        #: The model itself, in evaluation mode.
        self.model = predictor.model

    def _call(self, images, batch_size, tiling, to_result, **options):
        if batch_size < 1:
            raise ConfigError(f'batch_size must be at least 1, got {batch_size!r}')
        if tiling and batch_size > 1:
            raise ConfigError(f'batch_size={batch_size} cannot be used with tile: tiles are predicted one by one. '
                              'Omit one of them')
        predictor, several, results = self._predictor, isinstance(images, (list, tuple)), []
        images = list(images) if several else [images]
        for start in range(0, len(images), batch_size):
            batch = [predictor.read(image, tiling) for image in images[start:start + batch_size]]
            samples = [predictor(batch[0], **options)] if isinstance(batch[0], BigImage) else predictor.samples(batch)
            results += map(to_result, batch, samples)
        return results if several else results[0]


class LoadedDetector(_Loaded):
    """A detector. Create it with `load`."""

    def __init__(self, predictor, threshold: float | None):
        super().__init__(predictor)
        #: Objects with a lower score are dropped.
        self.threshold = 0.3 if threshold is None else threshold

    def __call__(self, images, *, batch_size: int = 1, threshold: float = None, tile: int = None,
                 overlap: float = None) -> 'Objects | list[Objects]':
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
            ConfigError: ``batch_size``, ``tile`` or ``overlap`` is invalid.
            DataError: A file cannot be read, or an argument is not an image.
        """
        threshold = self.threshold if threshold is None else threshold
        return self._call(images, batch_size, tiling_of(tile, overlap), partial(self._to_result, threshold))

    def _to_result(self, threshold, image, sample):
        sample = sample.cpu()
        sample.pred_instances = sample.pred_instances[sample.pred_instances.scores >= threshold]
        found = sample.pred_instances.numpy()
        masks = found.get('masks')
        masks = CutMasks(masks, *image.size) if isinstance(masks, list) else masks
        return Objects(found.bboxes, found.scores, found.labels, tuple(self.classes[i] for i in found.labels), masks,
                       partial(self._predictor.drawing.draw, *image.shown(sample), pred_score_thr=-1.))


class LoadedSegmentor(_Loaded):
    """A segmentor. Create it with `load`."""

    def __init__(self, predictor, threshold=None):
        if threshold is not None:
            raise ConfigError('threshold works only with a detector; the result of a segmentor has a score per pixel')
        super().__init__(predictor)

    def __call__(self, images, *, batch_size: int = 1, scores: bool = True, tile: int = None,
                 overlap: float = None) -> 'Regions | list[Regions]':
        """Predict the class of each pixel of an image, or of each image of a list.

        Args:
            images: As for `LoadedDetector`.
            scores: Whether to return the probabilities of the labels; without them it is faster.
            batch_size, tile, overlap: As for `LoadedDetector`; where tiles overlap, their scores are blended.

        Returns:
            `Regions`, or a list of them.

        Raises:
            ConfigError, DataError: As for `LoadedDetector`.
        """
        return self._call(images, batch_size, tiling_of(tile, overlap), partial(self._to_result, scores),
                          scores=scores)

    def _to_result(self, with_scores, image, sample):
        found, logits, scores = sample.pred_sem_seg.cpu(), sample.get('seg_logits'), None
        if with_scores and logits is not None:
            scores = scores_of(logits.data, sample.pred_sem_seg.data)
        elif with_scores and 'label_scores' in sample:  # of an exported file, or of tiles
            scores = sample.label_scores.data[0].numpy()
        drawn = type(sample)(metainfo=sample.metainfo, pred_sem_seg=found)
        return Regions(np.asarray(found.data[0]).astype(np.int64, copy=False), scores,
                       partial(self._predictor.drawing.draw, *image.shown(drawn)))
