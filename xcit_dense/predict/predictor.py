"""Predictions for image files: pictures, and results in the format of the task."""
import json
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.device import get_device
from mmengine.registry import DATASETS, MODELS, VISUALIZERS, init_default_scope
from mmengine.utils import track_iter_progress

from ..data.classes import take_classes
from ..errors import DataError
from ..train.hooks import fuse_backbones
from ..weights import fetch, load_model, read_checkpoint
from ..weights.meta import get_dataset_meta

#: The category ids of COCO 2017 are 1 to 90 without these.
_COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)


class Predictor:
    """A model with its weights, its image pipeline and its class names. Use `build_predictor`.

    Args:
        cfg: A config as `xcit_dense.config.loading.load_config` gives it.
        checkpoint: Path or address of the weights of the whole model.

    Raises:
        CheckpointError: The weights cannot be read or do not fit the config.
    """

    def __init__(self, cfg, checkpoint):
        checkpoint = fetch(str(checkpoint))
        weights = read_checkpoint(checkpoint)
        take_classes(cfg, weights, checkpoint, loaders=[])
        init_default_scope(cfg.default_scope)
        self.model = MODELS.build(cfg.model)
        load_model(self.model, weights, checkpoint)
        fuse_backbones(self.model.to(get_device()).eval())
        dataset = cfg.test_dataloader.dataset
        with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
            self.meta = {**registry.get(dataset.type).METAINFO, **get_dataset_meta(weights)}
        self.pipeline = Compose([dict(type='LoadImageFromNDArray')] + [
            step for step in dataset.pipeline if not step.type.startswith('Load')])
        self.visualizer = VISUALIZERS.build(dict(cfg.visualizer, vis_backends=None))
        self.visualizer.dataset_meta = self.meta

    def __call__(self, image, image_id):
        """Predict one image (H, W, 3), BGR, uint8, as OpenCV reads it.

        Returns:
            The framework's data sample, on the CPU: ``pred_instances`` or ``pred_sem_seg`` in pixels of the image.
        """
        data = self.pipeline(dict(img=image, img_id=image_id))
        with torch.no_grad():
            return self.model.test_step(dict(inputs=[data['inputs']], data_samples=[data['data_samples']]))[0].cpu()

    def draw(self, image, sample, out_file, **options):
        """Write a picture of the image with its predictions."""
        self.visualizer.add_datasample('', cv2.cvtColor(image, cv2.COLOR_BGR2RGB), sample, draw_gt=False,
                                       out_file=str(out_file), **options)


class DetectionPredictor(Predictor):
    """Draws boxes, masks, classes and scores; writes COCO's results format.

    Args:
        cfg: As for `Predictor`.
        checkpoint: As for `Predictor`.
        score_thr: Objects with a lower score are not drawn; the results hold all.
    """

    def __init__(self, cfg, checkpoint, score_thr: float = 0.3):
        super().__init__(cfg, checkpoint)
        self.score_thr = score_thr
        self.category_ids = self.meta.get('category_ids') or _category_ids(self.meta['classes'])
        self.records = []

    def write(self, image, image_id, name, out_dir):
        """Predict one image; draw it into ``out_dir / name`` and keep its records."""
        sample = self(image, image_id)
        self.draw(image, sample, Path(out_dir, name).with_suffix('.jpg'), pred_score_thr=self.score_thr)
        self.records += self.to_coco(sample, image_id=image_id, file_name=str(name))

    def close(self, out_dir):
        """Write ``results.json`` and return what there is, in words."""
        Path(out_dir, 'results.json').write_text(json.dumps(self.records))
        return f'{len(self.records)} objects (results.json)'

    def to_coco(self, sample, **fields):
        """Return the objects of a sample as records of COCO's results format, with ``fields`` in each."""
        from pycocotools import mask as mask_api
        found = sample.pred_instances.numpy()
        records = []
        for i in range(len(found['scores'])):
            x1, y1, x2, y2 = found['bboxes'][i].tolist()
            label = int(found['labels'][i])
            record = dict(fields, category_id=self.category_ids[label], category_name=self.meta['classes'][label],
                          score=float(found['scores'][i]), bbox=[x1, y1, x2 - x1, y2 - y1])
            if 'masks' in found:
                rle = mask_api.encode(np.asfortranarray(found['masks'][i].astype(np.uint8)))
                record['segmentation'] = dict(size=rle['size'], counts=rle['counts'].decode())
            records.append(record)
        return records


class SegmentationPredictor(Predictor):
    """Draws the classes in their colours over the image; writes label maps as PNG."""

    def __init__(self, cfg, checkpoint):
        super().__init__(cfg, checkpoint)
        # the maps are written as the data set has them: ADE20k's first class is 1
        dataset = cfg.test_dataloader.dataset
        self.first_label = int(self.meta.get('reduce_zero_label', dataset.get('reduce_zero_label', False)))
        self.count = 0

    def write(self, image, image_id, name, out_dir):
        """Predict one image; draw it into ``out_dir / name`` and write ``out_dir / labels / name`` as PNG."""
        sample = self(image, image_id)
        self.draw(image, sample, Path(out_dir, name).with_suffix('.jpg'))
        labels = sample.pred_sem_seg.data[0].numpy() + self.first_label
        path = Path(out_dir, 'labels', name).with_suffix('.png')  # as data sets name them
        path.parent.mkdir(parents=True, exist_ok=True)
        data = cv2.imencode('.png', labels.astype(np.uint8 if labels.max() < 256 else np.uint16))[1]
        path.write_bytes(data.tobytes())  # imwrite says nothing where it cannot write
        self.count += 1

    def close(self, out_dir):
        """Write the class names of the label maps and return what there is, in words."""
        names = dict(enumerate(self.meta['classes'], start=self.first_label))
        Path(out_dir, 'classes.json').write_text(json.dumps(names, indent=1))
        return f'{self.count} label maps (labels/, names in classes.json)'


def build_predictor(cfg, checkpoint, score_thr: float = 0.3) -> Predictor:
    """Return the predictor for the task of a config; the arguments are those of `DetectionPredictor`."""
    if cfg.default_scope == 'mmseg':
        return SegmentationPredictor(cfg, checkpoint)
    return DetectionPredictor(cfg, checkpoint, score_thr)


def predict_files(predictor, root, paths, out_dir):
    """Predict image files; write pictures and results into ``out_dir``.

    An image id is the number in the file's name, as in COCO, where all files have different ones; or
    else the position among the files.
    What was done before an interruption is kept.

    Args:
        predictor: Of `build_predictor`.
        root: The folder below which the output keeps the folders of the input.
        paths: The image files.
        out_dir: The folder to write into.

    Returns:
        What was written, in words.

    Raises:
        DataError: ``out_dir`` is ``root`` or cannot be written into; two images have the same name but for the
            suffix; or some could not be read, and the others are done all the same.
    """
    if Path(out_dir).resolve() == Path(root).resolve():
        raise DataError(f'{out_dir} holds the images, and the pictures would overwrite them; give another folder')
    names = Counter(str(path.relative_to(root).with_suffix('')) for path in paths)
    doubled = [name for name, count in names.items() if count > 1]
    if doubled:
        raise DataError(f'several images in {root} have one name but for the suffix, and would have one result: '
                        f'{", ".join(doubled[:5])}. Rename one of each.')
    stems = [path.stem for path in paths]
    numbered = all(stem.isdecimal() for stem in stems) and len(set(map(int, stems))) == len(stems)
    try:
        written, unreadable = _predict_all(predictor, root, paths, numbered, out_dir)
    except OSError as error:
        raise DataError(f'cannot write into {out_dir}: {error}') from error
    if unreadable:
        raise DataError('\n  '.join([f'{len(unreadable)} of {len(paths)} images could not be read; wrote {written}. '
                                    'These could not:', *map(str, unreadable)]))
    return written


def _predict_all(predictor, root, paths, numbered, out_dir):
    """Return what was written, in words, and the images that could not be read."""
    unreadable, count = [], 0
    try:
        for position, path in enumerate(track_iter_progress(paths), start=1):
            image = cv2.imread(str(path))
            if image is None:
                unreadable.append(path)
            else:
                predictor.write(image, int(path.stem) if numbered else position, path.relative_to(root), out_dir)
                count += 1
    finally:
        print()  # the progress bar ends without a line break
        written = f'{count} pictures and {predictor.close(out_dir)} in {out_dir}' if count else 'nothing'
    return written, unreadable


def _category_ids(classes):
    """Return the category id of every class: COCO's own for COCO's classes, else 1, 2, 3 and so on."""
    from mmdet.datasets import CocoDataset
    if tuple(classes) == tuple(CocoDataset.METAINFO['classes']):
        return [i for i in range(1, 91) if i not in _COCO_GAPS]
    return list(range(1, len(classes) + 1))
