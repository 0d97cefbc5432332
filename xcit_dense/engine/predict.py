"""Predictions for image files: pictures and results in COCO's format."""
import json
from pathlib import Path

import cv2
import numpy as np
import torch
from mmengine.dataset import Compose
from mmengine.device import get_device
from mmengine.registry import MODELS, VISUALIZERS, init_default_scope
from mmengine.utils import track_iter_progress

from ..checkpoint import classes_of_checkpoint, fetch, load_model, read_checkpoint
from ..errors import DataError
from .config import set_classes

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')

#: The category ids of COCO 2017 are 1 to 90 without these.
_COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)


class Predictor:
    """A detector with its weights, its image pipeline and its class names.

    Args:
        cfg: A config as `xcit_dense.engine.config.load_config` gives it.
        checkpoint: Path or address of the weights of the whole model.
        score_thr: Objects with a lower score are not drawn; the results hold all.

    Raises:
        CheckpointError: The weights cannot be read or do not fit the config.
    """

    def __init__(self, cfg, checkpoint, score_thr: float = 0.3):
        checkpoint = fetch(str(checkpoint))
        weights = read_checkpoint(checkpoint)
        if cfg.get('classes_from_data'):
            set_classes(cfg, classes_of_checkpoint(weights, checkpoint))
        init_default_scope(cfg.default_scope)
        self.model = MODELS.build(cfg.model)
        load_model(self.model, weights, checkpoint)
        self.model.to(get_device()).eval()
        meta = weights.get('meta', {}).get('dataset_meta')
        self.dataset_meta = meta or dict(classes=_coco_classes())
        steps = cfg.test_dataloader.dataset.pipeline
        self.pipeline = Compose([step for step in steps if step.type != 'LoadAnnotations'])
        self.visualizer = VISUALIZERS.build(dict(cfg.visualizer, vis_backends=None))
        self.visualizer.dataset_meta = self.dataset_meta
        self.score_thr = score_thr
        self.category_ids = _category_ids(self.dataset_meta['classes'])

    def __call__(self, path, image_id):
        """Predict one image file.

        Returns:
            The framework's data sample, with ``pred_instances`` in pixels of the file.
        """
        data = self.pipeline(dict(img_path=str(path), img_id=image_id))
        with torch.no_grad():
            return self.model.test_step(dict(inputs=[data['inputs']], data_samples=[data['data_samples']]))[0]

    def draw(self, path, sample, out_file):
        """Write a picture of the image with its boxes, masks, classes and scores."""
        image = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        self.visualizer.add_datasample('', image, sample.cpu(), draw_gt=False, out_file=str(out_file),
                                       pred_score_thr=self.score_thr)

    def to_coco(self, sample, **fields):
        """Return the objects of a sample as records of COCO's results format, with ``fields`` in each."""
        from pycocotools import mask as mask_api
        found = sample.pred_instances.cpu().numpy()
        records = []
        for i in range(len(found['scores'])):
            x1, y1, x2, y2 = found['bboxes'][i].tolist()
            label = int(found['labels'][i])
            record = dict(fields, category_id=self.category_ids[label],
                          category_name=self.dataset_meta['classes'][label], score=float(found['scores'][i]),
                          bbox=[x1, y1, x2 - x1, y2 - y1])
            if 'masks' in found:
                rle = mask_api.encode(np.asfortranarray(found['masks'][i].astype(np.uint8)))
                record['segmentation'] = dict(size=rle['size'], counts=rle['counts'].decode())
            records.append(record)
        return records


def predict_folder(predictor, source, out_dir):
    """Predict an image or all images below a folder; write pictures and ``results.json`` into ``out_dir``.

    An image id is the number in the file's name, as in COCO, where all files have different ones; or
    else the position among the files.
    What was done before an interruption is kept.

    Returns:
        The number of images and of records.

    Raises:
        DataError: There is no image, or some could not be read; the others are done all the same.
    """
    root, paths = find_images(source)
    out_dir = Path(out_dir)
    records, unreadable = [], []
    stems = [path.stem for path in paths]
    numbered = all(stem.isdecimal() for stem in stems) and len(set(map(int, stems))) == len(stems)
    try:
        for position, path in enumerate(track_iter_progress(paths), start=1):
            if cv2.imread(str(path)) is None:
                unreadable.append(path)
                continue
            image_id = int(path.stem) if numbered else position
            sample = predictor(path, image_id)
            name = path.relative_to(root)
            out_file = out_dir / (name if path.suffix.lower() == '.jpg' else name.with_name(f'{name.name}.jpg'))
            predictor.draw(path, sample, out_file)
            records += predictor.to_coco(sample, image_id=image_id, file_name=str(name))
    finally:
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / 'results.json').write_text(json.dumps(records))
        print()  # the progress bar ends without a line break
    if unreadable:
        raise DataError(f'{len(unreadable)} of {len(paths)} images could not be read: '
                        + ', '.join(map(str, unreadable[:5])))
    return len(paths), len(records)


def find_images(source):
    """Return the folder and the sorted image files of a file or folder.

    Raises:
        DataError: There are none.
    """
    source = Path(source).expanduser()
    if source.is_file():
        return source.parent, [source]
    if not source.is_dir():
        raise DataError(f'there is no image or folder {source.absolute()}')
    paths = sorted(p for p in source.rglob('*') if p.suffix.lower() in IMAGE_SUFFIXES)
    if not paths:
        raise DataError(f'there is no image in {source.absolute()}; looked for {", ".join(IMAGE_SUFFIXES)}')
    return source, paths


def _coco_classes():
    from mmdet.datasets import CocoDataset
    return CocoDataset.METAINFO['classes']


def _category_ids(classes):
    """Return the category id of every class: COCO's own for COCO's classes, else 1, 2, 3 and so on."""
    if tuple(classes) == tuple(_coco_classes()):
        return [i for i in range(1, 91) if i not in _COCO_GAPS]
    return list(range(1, len(classes) + 1))
