"""A model that predicts image files, and what it writes of each: a picture, and results in the format of the task."""
import json
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.device import get_device
from mmengine.registry import MODELS, init_default_scope

from ..config.framework import framework_of
from ..data.classes import palette_of, take_classes
from ..data.datasets import ann_file_of, type_of
from ..errors import CheckpointError, ConfigError, DataError
from ..files import atomic_write
from ..text import first_line
from ..train.hooks import fuse_backbones
from ..weights import fetch, load_model, read_checkpoint
from ..weights.meta import get_dataset_meta
from .classes import classes_of_objects, classes_of_pixels, ids_in_file, ids_in_names, image_ids, test_dataset
from .drawing import Drawing
from .reading import ImageReader


class Predictor:
    """A model with its weights, its image pipeline and its classes. Use `build_predictor`.

    Args:
        cfg: A config as `xcit_dense.config.loading.load_config` gives it.
        checkpoint: Path or address of the weights of the whole model.
        device: Where the model runs; by default the accelerator that is there, or the CPU.
        **drawing: Options of the visualizer.

    Raises:
        CheckpointError: The weights cannot be read or do not fit the config.
        ConfigError: The config does not say how images are read, or there is no such device.
        DataError: Likewise.
    """

    #: The tool that owns what is written.
    tool = 'predict'
    #: Finds the classes, from the config, what the checkpoint says of them, and its file.
    find_classes = None
    #: What draws where the config does not say.
    visualizer_type = None

    def __init__(self, cfg, checkpoint, device=None, **drawing):
        device = _usable(device or get_device())
        checkpoint = fetch(str(checkpoint))
        weights = read_checkpoint(checkpoint)
        _take_classes(cfg, weights, checkpoint)
        init_default_scope(framework_of(cfg) or 'mmengine')
        self.model = MODELS.build(cfg.model)
        load_model(self.model, weights, checkpoint)
        fuse_backbones(self.model.to(device).eval())
        dataset, meta = test_dataset(cfg), get_dataset_meta(weights)
        self.classes = self.find_classes(cfg, meta, checkpoint)
        self.reader = ImageReader(dataset)
        self._cfg = cfg
        meta = {**getattr(type_of(dataset), 'METAINFO', {}), **meta, 'classes': self.classes.names}
        if len(meta.get('palette') or ()) < len(self.classes.names):
            meta['palette'] = palette_of(self.classes.names)
        self.drawing = Drawing({'type': self.visualizer_type, **(cfg.get('visualizer') or {})}, meta, **drawing)

    def __call__(self, image):
        """Predict one image, as `ImageReader.read` of ``reader`` gives it.

        Returns:
            The framework's data sample, on the CPU: ``pred_instances`` or ``pred_sem_seg`` in pixels of the image.
        """
        return self.samples([image])[0].cpu()

    def samples(self, images) -> list:
        """Predict images as one batch; the data samples are on the device of the model."""
        batch = {key: [image.data[key] for image in images] for key in ('inputs', 'data_samples')}
        with torch.no_grad():
            return self.model.test_step(batch)

    def predict(self, image, name, out_dir):
        """Predict one image, draw it into ``out_dir / name`` as JPEG, and return the sample."""
        sample = self(image)
        self.drawing.write(image.picture, sample, Path(out_dir, _picture(name)))
        return sample

    def ids_of(self, paths) -> list:
        """Return the ids of image files, if results have ids."""
        return []

    def files_of(self, name) -> list:
        """Return the files that are written for an image, relative to the folder of the results."""
        return [_picture(name)]

    def write_classes(self, out_dir, **words):
        """Write ``classes.json``: what the numbers in the results mean, and other words on them."""
        found = self.classes
        content = dict(classes=dict(zip(map(str, found.numbers), found.names, strict=True)),
                       names_from=found.names_from, numbers_from=found.numbers_from, **words)
        _write_json(Path(out_dir, 'classes.json'), content, indent=1)


class DetectionPredictor(Predictor):
    """Draws boxes, masks, classes and scores; writes COCO's results format.

    Args:
        cfg: As for `Predictor`.
        checkpoint: As for `Predictor`.
        score_thr: Objects with a lower score are not drawn; the results hold all.
        device: As for `Predictor`.
        ids_from: File in COCO's format that has the ids of the images. Without it an image has the id that the
            annotation file of the test data has, where that has all the images; or else the number in the file's
            name, as in COCO, where all files have different ones; or else its place among the files, from 1.
    """

    find_classes = staticmethod(classes_of_objects)
    visualizer_type = 'DetLocalVisualizer'
    #: Written at the end.
    last_files = ('results.json', 'classes.json')

    def __init__(self, cfg, checkpoint, score_thr: float = 0.3, device=None, ids_from=None):
        super().__init__(cfg, checkpoint, device, pred_score_thr=score_thr)
        self.records, self._ids_from, self._ids_are = [], ids_from, None

    def ids_of(self, paths) -> list:
        """Return the ids of image files.

        Raises:
            DataError: ``ids_from`` was given, and cannot be read or does not have all of them.
        """
        if self._ids_from:
            self._ids_are = f'those of {self._ids_from}'
            return ids_in_file(self._ids_from, paths)
        if ids := image_ids(self._cfg, paths):
            self._ids_are = f'those of {ann_file_of(test_dataset(self._cfg))}'
        elif ids := ids_in_names(paths):
            self._ids_are = 'the numbers in the names of the files'
        else:
            ids, self._ids_are = list(range(1, len(paths) + 1)), 'counted from 1 in the order of the files'
        return ids

    def write(self, image, name, out_dir):
        """Predict one image; draw it into ``out_dir / name`` and keep its records."""
        sample = self.predict(image, name, out_dir)
        self.records += self.to_coco(sample, image_id=image.id, file_name=str(name))

    def close(self, out_dir):
        """Write ``results.json`` and the classes, and return what there is, in words."""
        self.write_classes(out_dir, image_ids=self._ids_are)
        _write_json(Path(out_dir, 'results.json'), self.records)
        return (f'{len(self.records)} objects (results.json; category ids: {self.classes.numbers_from}; image ids: '
                f'{self._ids_are})')

    def to_coco(self, sample, **fields):
        """Return the objects of a sample as records of COCO's results format, with ``fields`` in each."""
        from pycocotools import mask as mask_api
        found = sample.pred_instances.numpy()
        records = []
        for i in range(len(found['scores'])):
            x1, y1, x2, y2 = found['bboxes'][i].tolist()
            label = int(found['labels'][i])
            record = dict(fields, category_id=self.classes.numbers[label], category_name=self.classes.names[label],
                          score=float(found['scores'][i]), bbox=[x1, y1, x2 - x1, y2 - y1])
            if 'masks' in found:
                rle = mask_api.encode(np.asfortranarray(found['masks'][i].astype(np.uint8)))
                record['segmentation'] = dict(size=rle['size'], counts=rle['counts'].decode())
            records.append(record)
        return records


class SegmentationPredictor(Predictor):
    """Draws the classes in their colours over the image; writes label maps as PNG."""

    find_classes = staticmethod(classes_of_pixels)
    visualizer_type = 'SegLocalVisualizer'
    #: Written at the end.
    last_files = ('classes.json', )

    def __init__(self, cfg, checkpoint, device=None):
        super().__init__(cfg, checkpoint, device)
        self.count = 0

    def files_of(self, name) -> list:
        """Return those of `Predictor.files_of`, and the label map, which is named as data sets do."""
        return [*super().files_of(name), Path('labels', name).with_suffix('.png').as_posix()]

    def write(self, image, name, out_dir):
        """Predict one image; draw it into ``out_dir / name`` and write ``out_dir / labels / name`` as PNG."""
        self.write_labels(self.predict(image, name, out_dir), Path(out_dir, self.files_of(name)[1]))
        self.count += 1

    def write_labels(self, sample, path):
        """Write the label map of a sample as PNG."""
        labels = self.labels_of(sample.pred_sem_seg.data[0].numpy())
        path.parent.mkdir(parents=True, exist_ok=True)
        # 255 is no class where maps have 8 bits
        small = self.classes.numbers[-1:] < (255, ) and labels.max() < 256
        data = cv2.imencode('.png', labels.astype(np.uint8 if small else np.uint16))[1]
        path.write_bytes(data.tobytes())  # imwrite says nothing where it cannot write

    def labels_of(self, outputs):
        """Return a label map as the data set has it, where ADE20k's first class is 1, of the outputs of the model.

        Those behind the last that has a name have the numbers behind its own.
        """
        numbers = self.classes.numbers
        nameless = range(len(numbers), int(outputs.max(initial=0)) + 1)
        last = numbers[-1] + 1 - len(numbers) if numbers else 0
        return np.array([*numbers, *(output + last for output in nameless)], np.int64)[outputs]

    def close(self, out_dir):
        """Write the class names of the label maps and return what there is, in words."""
        self.write_classes(out_dir)
        return f'{self.count} label map{"s" * (self.count != 1)} (labels/, names in classes.json)'


def build_predictor(cfg, checkpoint, score_thr: float = 0.3, device=None, ids_from=None) -> Predictor:
    """Return the predictor for the task of a config; the arguments are those of `DetectionPredictor`.

    Raises:
        CheckpointError: As for `Predictor`.
        ConfigError: Likewise, or the config is of a classifier, or of a segmentor, whose results have no ids.
        DataError: As for `Predictor`.
    """
    if framework_of(cfg) == 'mmpretrain':
        raise ConfigError('the config is of a classifier: what its images show is said by `python -m xcit_dense '
                          'classify CHECKPOINT IMAGES`, and from Python by xcit_dense.predict.classify(checkpoint, '
                          'image)')
    if framework_of(cfg) == 'mmseg':
        if ids_from:
            raise ConfigError('--ids-from goes with a detector: the label maps of a segmentor have names and no ids')
        return SegmentationPredictor(cfg, checkpoint, device)
    return DetectionPredictor(cfg, checkpoint, score_thr, device, ids_from)


def _usable(device):
    """Return a device that a tensor can be on."""
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # the first where torch is built without it
        raise ConfigError(f'device={str(device)!r} cannot be used here: {first_line(error)}. Without it, the '
                          'accelerator that is there is taken, or the CPU') from error
    return device


def _take_classes(cfg, weights, checkpoint):
    """Take the classes of a checkpoint, or of the training data where it has none and they are there."""
    try:
        take_classes(cfg, weights, checkpoint, loaders=[])
    except CheckpointError as error:
        try:
            take_classes(cfg, loaders=[])
        except DataError:
            raise error from None


def _picture(name):
    return Path(name).with_suffix('.jpg').as_posix()


def _write_json(path, content, **options):
    with atomic_write(path) as part:
        part.write_text(json.dumps(content, **options))
