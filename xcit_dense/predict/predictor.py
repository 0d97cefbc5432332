"""A model that predicts image files, and writes for each a picture and results in the format of the task."""
import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch
from mmengine.device import get_device
from mmengine.logging import print_log
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from .._utils.files import atomic_write
from .._utils.text import counted, first_line
from ..compat.masks import RunLengths, cut_masks
from ..config.fit.fitting import use_fit
from ..config.tasks import task_of, tasks_with
from ..data.batches import step_by_size
from ..data.classes import take_classes
from ..draw.classes import class_colours
from ..errors import ConfigError, DataError
from ..models.graphs import Graphs
from ..models.trunk import backbones_of, fuse_backbones
from ..runtime import Model
from ..weights import fetch, load_model, read_checkpoint
from ..weights.contents import get_dataset_meta
from .classes import classes_of_objects, classes_of_pixels, image_ids, test_dataset
from .drawing import Drawing
from .labels import LabelFiles, check_form, write_text
from .merging import CutMask, find_in_tiles
from .models import ExportedModel, classes_of, meta_of, set_dtype
from .polygons import labels_of_objects, labels_of_regions
from .reading import BigImage, ImageReader
from .tiles import label_in_tiles

#: The longer side of the drawing of an image that is predicted in tiles: the frameworks need hundreds of bytes per
#: pixel to draw.
DRAWN = 2048


class Predictor:
    """A model with its weights, its image pipeline and its classes. Create it with `build_predictor`.

    Args:
        cfg: A config from `xcit_dense.config.loading.load_config`.
        checkpoint: Path or address of the weights of the whole model. Or an exported file from `open_exported`, with
            its config from `config_of`; ``device``, ``fuse``, ``dtype`` and ``given`` are then ignored.
        score_thr: Objects with a lower score, from 0 to 1, are not drawn; the results have all objects.
        device: Where the model runs. Default: the accelerator if there is one, otherwise the CPU.
        fuse: Whether to fuse the backbone, for speed.
        graphs: Whether to replay it as CUDA graphs, on a GPU, for images of sizes that come again.
        dtype: The type it computes in, as for `xcit_dense.predict.models.set_dtype`.
        given: What the user set in the config, as for `xcit_dense.config.fit.fitting.use_fit`.
        tiling: The `xcit_dense.predict.tiles.Tiling` of images that are larger than a tile. Default: predict all whole.
        labels: The form of the label files that are written too, one of `xcit_dense.predict.labels.FORMS`.
    """

    #: The tool that owns the written files.
    tool = 'predict'
    #: Finds the classes, from the config, the checkpoint's data on them, and the checkpoint file.
    find_classes = None
    #: The visualizer if the config names none.
    visualizer_type = None
    #: Whether there are objects with scores, and results with image ids.
    finds_objects = False
    #: The `LabelFiles` that are written too, or None.
    labels = None

    def __init__(self, cfg, checkpoint, score_thr: float = 0.3, device=None, fuse: bool = True, graphs: bool = False,
                 dtype: str = 'float32', given=(), tiling=None, labels: str = None):
        check_form(labels, task_of(cfg).name)  # before the model is built
        if isinstance(checkpoint, Model):
            init_default_scope(task_of(cfg).framework)
            self.model, self.classes = ExportedModel(checkpoint), classes_of(checkpoint)
            meta = meta_of(checkpoint)
        else:
            meta = self._build(cfg, checkpoint, device or get_device(), fuse, graphs, dtype, given)
        self._cfg, dataset = cfg, test_dataset(cfg)
        self.reader = ImageReader(dataset)
        meta = {**getattr(dataset.type, 'METAINFO', {}), **meta, 'classes': self.classes.names}
        self.palette = meta['palette'] = class_colours(self.classes.names, meta.get('palette'))
        self.drawing = Drawing({'type': self.visualizer_type, **(cfg.get('visualizer') or {})}, meta,
                               **(dict(pred_score_thr=score_thr) if self.finds_objects else {}))
        self.records, self.count = [], 0  # objects that a detector found, label maps that a segmentor wrote
        self._score_thr, self.tiling = score_thr, tiling
        if labels:
            self.labels = LabelFiles(labels, self.classes)
            self.last_files = (*self.last_files, *self.labels.last_files)

    def _build(self, cfg, checkpoint, device, fuse, graphs, dtype, given):
        """Set model and classes to those of a checkpoint, and return its metadata on the classes."""
        checkpoint = fetch(str(checkpoint))
        weights = read_checkpoint(checkpoint)
        use_fit(cfg, weights, given, source=checkpoint)
        meta = get_dataset_meta(weights)
        try:
            take_classes(cfg, weights if meta.get('classes') else None, checkpoint, loaders=[])
        except DataError:  # the data has none either
            take_classes(cfg, weights, checkpoint, loaders=[])
        init_default_scope(task_of(cfg).framework or 'mmengine')
        self.model = MODELS.build(cfg.model)
        load_model(self.model, weights, checkpoint)
        cut_masks(self.model.to(device).eval())
        if fuse:
            fuse_backbones(self.model)
        set_dtype(self.model, dtype)
        for backbone in backbones_of(self.model) if graphs else ():
            backbone.graphs = Graphs(backbone, partial(print_log, logger='current'))
        self.classes = self.find_classes(cfg, meta, checkpoint)
        return meta

    def __call__(self, image, **options):
        """Predict one image, read by `read`; ``options`` are for images in tiles.

        Returns:
            The framework's data sample, on the CPU: ``pred_instances`` or ``pred_sem_seg`` in pixels of the image.
        """
        return self.in_tiles(image, **options) if isinstance(image, BigImage) else self.samples([image])[0].cpu()

    def read(self, image, tiling=None):
        """Read an image like `xcit_dense.predict.reading.ImageReader.read`; the default tiling is that of all images.

        Raises:
            DataError: It cannot be read, or is of another type.
        """
        try:
            return self.reader.read(image, tiling or self.tiling)
        except DataError:
            raise
        except Exception as error:  # of any type, depending on the file and the steps of the pipeline
            name = f'{image} cannot be read' if isinstance(image, (str, os.PathLike)) else 'an image cannot be read'
            raise DataError(f'{name}: {first_line(error)}') from error

    def samples(self, images) -> list:
        """Predict images as one batch; the data samples are on the device of the model."""
        batch = {key: [image.data[key] for image in images] for key in ('inputs', 'data_samples')}
        with torch.no_grad():
            return step_by_size(self.model.test_step, self.model, batch)

    def predict(self, image, name, out_dir):
        """Predict one image, draw it into ``out_dir / name`` as JPEG, and return the sample."""
        sample = self(image)
        self.drawing.write(*image.shown(sample, DRAWN), Path(out_dir, self.files_of(name)[0]))
        return sample

    def begin(self, names, paths):
        """Prepare for writing the results of image files, by the names that `write` gets."""
        if self.labels:
            self.labels.begin(names, paths)

    def files_of(self, name) -> list:
        """Return the files that are written for an image, the picture first, relative to the folder of the results."""
        return [Path(name).with_suffix('.jpg').as_posix(), *(self.labels.files_of(name) if self.labels else ())]

    def _close_labels(self, out_dir):
        return f'\n{self.labels.close(out_dir)}' if self.labels else ''

    def write_classes(self, out_dir, **words):
        """Write ``classes.json``: what the numbers in the results mean, and ``words``, further notes on them."""
        found = self.classes
        content = dict(classes=dict(zip(map(str, found.numbers), found.names, strict=True)),
                       names_from=found.names_from, numbers_from=found.numbers_from, **words)
        write_text(Path(out_dir, 'classes.json'), json.dumps(content, indent=1))


class DetectionPredictor(Predictor):
    """Draws boxes, masks, classes and scores; writes COCO's results format."""

    find_classes = staticmethod(classes_of_objects)
    visualizer_type = 'DetLocalVisualizer'
    finds_objects = True
    #: Written at the end.
    last_files = ('results.json', 'classes.json')

    def begin(self, names, paths):
        """Find the ids of image files."""
        ids, self._ids_are = image_ids(self._cfg, paths)
        self._ids = dict(zip(names, ids, strict=True))
        if self.labels:
            self.labels.begin(names, paths, self._ids)

    def write(self, image, name, out_dir):
        """Predict one image; draw it into ``out_dir / name`` and keep its records for `close`."""
        sample = self.predict(image, name, out_dir)
        records = self.to_coco(sample, image_id=self._ids[name], file_name=str(name))
        self.records += records
        if self.labels:
            size = sample.ori_shape[:2]
            found = labels_of_objects(records, self.classes.numbers, size, self._score_thr)
            self.labels.write(found, name, size, out_dir)

    def close(self, out_dir):
        """Write ``results.json`` and the classes, and return a description of them."""
        self.write_classes(out_dir, image_ids=self._ids_are)
        write_text(Path(out_dir, 'results.json'), json.dumps(self.records))
        scores = [record['score'] for record in self.records]
        drawn = sum(score >= self._score_thr for score in scores)
        hint = '' if drawn or not scores else f'; the best is {max(scores):.2g}, and a lower --score-thr draws more'
        return (f'{counted(len(scores), "objects")} in results.json; drawn: {drawn:,}, with a score of at least '
                f'{self._score_thr:g}{hint}{self._close_labels(out_dir)}')

    def to_coco(self, sample, **fields):
        """Return the objects of a sample as records of COCO's results format, with ``fields`` added to each."""
        found, records = sample.pred_instances, []
        if 'masks' in found:
            found.masks = RunLengths.of(found.masks)
        found = found.numpy()
        for i, label in enumerate(found.labels):
            x1, y1, x2, y2 = found.bboxes[i].tolist()
            record = dict(fields, category_id=self.classes.numbers[label], category_name=self.classes.names[label],
                          score=float(found.scores[i]), bbox=[x1, y1, x2 - x1, y2 - y1])
            if 'masks' in found:
                mask = found.masks[i]
                rle = mask.rle(*sample.ori_shape) if isinstance(mask, CutMask) else mask
                record['segmentation'] = dict(size=rle['size'], counts=rle['counts'].decode())
            records.append(record)
        return records

    def in_tiles(self, image, scores: bool = False):
        """Return the sample of a `BigImage`; objects always have scores."""
        return find_in_tiles(self, image)


class SegmentationPredictor(Predictor):
    """Draws the classes in their colours over the image; writes label maps as PNG files."""

    find_classes = staticmethod(classes_of_pixels)
    visualizer_type = 'SegLocalVisualizer'
    #: Written at the end.
    last_files = ('classes.json', )

    def files_of(self, name) -> list:
        """Return the files of `Predictor.files_of` and the label map, which is named as in data sets."""
        return [*super().files_of(name), Path('labels', name).with_suffix('.png').as_posix()]

    def write(self, image, name, out_dir):
        """Predict one image; draw it into ``out_dir / name`` and write ``out_dir / labels / name`` as PNG."""
        outputs = np.asarray(self.predict(image, name, out_dir).pred_sem_seg.data[0])
        self.write_labels(outputs, Path(out_dir, self.files_of(name)[-1]))
        self.count += 1
        if self.labels:
            regions = labels_of_regions(outputs, self.classes.names) if self.labels.files_of(name) else ()
            self.labels.write(regions, name, outputs.shape, out_dir)

    def write_labels(self, outputs, path):
        """Write a label map as PNG: in the numbers of the data set, where ADE20k's first class is 1.

        Outputs after the last that has a name get the numbers that follow.
        """
        numbers = self.classes.numbers
        last = numbers[-1] + 1 - len(numbers) if numbers else 0
        labels = [*numbers, *range(len(numbers) + last, int(outputs.max()) + 1 + last)]
        # in maps of 8 bits, 255 is not a class
        table = np.array(labels, np.uint8 if max(labels) < 255 else np.uint16)
        written = np.empty(outputs.shape, table.dtype)
        for rows in np.array_split(np.arange(len(outputs)), max(len(outputs) // 256, 1)):  # for little memory
            written[rows] = table[outputs[rows].astype(np.int64)]
        with atomic_write(path) as part:
            Image.fromarray(written).save(part, 'PNG', compress_level=1)

    def in_tiles(self, image, scores: bool = False):
        """Return the sample of a `BigImage`, with ``label_scores`` if wanted and known."""
        threshold = getattr(getattr(self.model, 'decode_head', None), 'threshold', None)
        return label_in_tiles(self, image, threshold, scores)

    def close(self, out_dir):
        """Write the class names of the label maps, and return a description."""
        self.write_classes(out_dir)
        return (f'{self.count:,} label map{"s" * (self.count != 1)} (labels/, names in classes.json)'
                f'{self._close_labels(out_dir)}')


def build_predictor(cfg, checkpoint, score_thr: float = 0.3, **options) -> Predictor:
    """Return the predictor for the task of a config; the arguments are those of `Predictor`.

    Raises:
        CheckpointError: The weights cannot be read or do not fit the config.
        ConfigError: The task has no predictor, the test data set no pipeline, or there is no such type.
        DataError: The config has no test data.
        RuntimeError: There is no such device.
    """
    task = task_of(cfg)
    kind = task.part('predictor')
    if kind is None:
        raise ConfigError(f'the config is for {task.name}, not for {tasks_with("predictor")}. Use '
                          '`python -m xcit_dense classify CHECKPOINT IMAGES` or xcit_dense.predict.classify('
                          'checkpoint, image); for DINO, which has no classes, use `python -m xcit_dense attention`')
    if not 0 <= score_thr <= 1:
        raise ConfigError(f'score_thr (--score-thr) must be from 0 to 1, got {score_thr}')
    return kind(cfg, checkpoint, score_thr, **options)
