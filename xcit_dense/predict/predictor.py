"""A model that predicts image files, and what it writes of each: a picture, and results in the format of the task."""
import json
from pathlib import Path
from uuid import uuid4

import cv2
import numpy as np
import torch
from mmengine.device import get_device
from mmengine.registry import MODELS, VISUALIZERS, init_default_scope

from ..config.framework import framework_of
from ..data.classes import palette_of, take_classes
from ..data.datasets import type_of
from ..errors import CheckpointError, ConfigError, DataError
from ..files import atomic_write
from ..train.hooks import fuse_backbones
from ..weights import fetch, load_model, read_checkpoint
from ..weights.meta import get_dataset_meta
from .classes import classes_of_objects, classes_of_pixels, image_ids, test_dataset
from .reading import ImageReader


class Predictor:
    """A model with its weights, its image pipeline and its classes. Use `build_predictor`.

    Args:
        cfg: A config as `xcit_dense.config.loading.load_config` gives it.
        checkpoint: Path or address of the weights of the whole model.
        device: Where the model runs; by default the accelerator that is there, or the CPU.

    Raises:
        CheckpointError: The weights cannot be read or do not fit the config.
        ConfigError: The config does not say how images are read.
        DataError: Likewise.
    """

    #: The tool that owns what is written.
    tool = 'predict'
    #: Finds the classes, from the config, what the checkpoint says of them, and its file.
    find_classes = None
    #: What draws where the config does not say.
    visualizer_type = None

    def __init__(self, cfg, checkpoint, device=None):
        checkpoint = fetch(str(checkpoint))
        weights = read_checkpoint(checkpoint)
        _take_classes(cfg, weights, checkpoint)
        init_default_scope(framework_of(cfg) or 'mmengine')
        self.model = MODELS.build(cfg.model)
        load_model(self.model, weights, checkpoint)
        fuse_backbones(self.model.to(device or get_device()).eval())
        dataset, meta = test_dataset(cfg), get_dataset_meta(weights)
        self.classes = self.find_classes(cfg, meta, checkpoint)
        self.reader = ImageReader(dataset)
        self._cfg = cfg
        meta = {**getattr(type_of(dataset), 'METAINFO', {}), **meta, 'classes': self.classes.names}
        if len(meta.get('palette') or ()) < len(self.classes.names):
            meta['palette'] = palette_of(self.classes.names)
        self.visualizer = VISUALIZERS.build(
            {'type': self.visualizer_type, **(cfg.get('visualizer') or {}), 'vis_backends': None,
             'name': uuid4().hex})  # mmengine gives all of one name the same, with the classes of the last
        self.visualizer.dataset_meta = meta

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

    def draw(self, picture, sample, **options) -> np.ndarray:
        """Draw a sample into a picture (H, W, 3), RGB, uint8, and return that; options are those of the visualizer."""
        drawn = []
        self.visualizer.add_image = lambda name, image, step=0: drawn.append(image)  # without a file it goes there
        try:
            self.visualizer.add_datasample('', picture, sample, draw_gt=False, **options)
        finally:
            del self.visualizer.add_image
        return drawn[0]

    def predict(self, image, name, out_dir, **options):
        """Predict one image, draw it into ``out_dir / name`` as JPEG, and return the sample."""
        sample = self(image)
        self.visualizer.add_datasample('', image.picture, sample, draw_gt=False,
                                       out_file=str(Path(out_dir, _picture(name))), **options)
        return sample

    def ids_of(self, paths) -> list:
        """Return the ids that the data has for image files, if it has them."""
        return []

    def files_of(self, name) -> list:
        """Return the files that are written for an image, relative to the folder of the results."""
        return [_picture(name)]

    def close(self, out_dir):
        """Write what is known once all images are done."""
        found = self.classes
        content = dict(classes=dict(zip(map(str, found.numbers), found.names, strict=True)),
                       names_from=found.names_from, numbers_from=found.numbers_from)
        _write_json(Path(out_dir, 'classes.json'), content, indent=1)


class DetectionPredictor(Predictor):
    """Draws boxes, masks, classes and scores; writes COCO's results format.

    Args:
        cfg: As for `Predictor`.
        checkpoint: As for `Predictor`.
        score_thr: Objects with a lower score are not drawn; the results hold all.
        device: As for `Predictor`.
    """

    find_classes = staticmethod(classes_of_objects)
    visualizer_type = 'DetLocalVisualizer'
    #: Written at the end.
    last_files = ('results.json', 'classes.json')

    def __init__(self, cfg, checkpoint, score_thr: float = 0.3, device=None):
        super().__init__(cfg, checkpoint, device)
        self.score_thr = score_thr
        self.records = []

    def ids_of(self, paths) -> list:
        """Return the ids that the annotation file of the test data has for image files, if it has all of them."""
        return image_ids(self._cfg, paths)

    def write(self, image, name, out_dir):
        """Predict one image; draw it into ``out_dir / name`` and keep its records."""
        sample = self.predict(image, name, out_dir, pred_score_thr=self.score_thr)
        self.records += self.to_coco(sample, image_id=image.id, file_name=str(name))

    def close(self, out_dir):
        """Write ``results.json`` and the classes, and return what there is, in words."""
        super().close(out_dir)
        _write_json(Path(out_dir, 'results.json'), self.records)
        return f'{len(self.records)} objects (results.json; category ids: {self.classes.numbers_from})'

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
        # the maps are written as the data set has them: ADE20k's first class is 1
        self.first_label = self.classes.numbers[0] if self.classes.numbers else 0
        self.count = 0

    def files_of(self, name) -> list:
        """Return those of `Predictor.files_of`, and the label map, which is named as data sets do."""
        return [*super().files_of(name), Path('labels', name).with_suffix('.png').as_posix()]

    def write(self, image, name, out_dir):
        """Predict one image; draw it into ``out_dir / name`` and write ``out_dir / labels / name`` as PNG."""
        sample = self.predict(image, name, out_dir)
        labels = sample.pred_sem_seg.data[0].numpy() + self.first_label
        path = Path(out_dir, self.files_of(name)[1])
        path.parent.mkdir(parents=True, exist_ok=True)
        # 255 is no class where maps have 8 bits
        small = self.classes.numbers[-1:] < (255, ) and labels.max() < 256
        data = cv2.imencode('.png', labels.astype(np.uint8 if small else np.uint16))[1]
        path.write_bytes(data.tobytes())  # imwrite says nothing where it cannot write
        self.count += 1

    def close(self, out_dir):
        """Write the class names of the label maps and return what there is, in words."""
        super().close(out_dir)
        return f'{self.count} label map{"s" * (self.count != 1)} (labels/, names in classes.json)'


def build_predictor(cfg, checkpoint, score_thr: float = 0.3, device=None) -> Predictor:
    """Return the predictor for the task of a config; the arguments are those of `DetectionPredictor`.

    Raises:
        CheckpointError: As for `Predictor`.
        ConfigError: Likewise, or the config is of a classifier.
        DataError: As for `Predictor`.
    """
    if framework_of(cfg) == 'mmpretrain':
        raise ConfigError('the config is of a classifier: what its images show is said by `python -m xcit_dense '
                          'classify CHECKPOINT IMAGES`, and from Python by xcit_dense.predict.classify(checkpoint, '
                          'image)')
    if framework_of(cfg) == 'mmseg':
        return SegmentationPredictor(cfg, checkpoint, device)
    return DetectionPredictor(cfg, checkpoint, score_thr, device)


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
