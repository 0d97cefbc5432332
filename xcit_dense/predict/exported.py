"""Files written by `python -m xcit_dense export`, in place of a checkpoint: as a model, a config and a checkpoint."""
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import MODELS
from mmengine.structures import InstanceData, PixelData

from ..errors import CheckpointError, SetupError
from ..runtime import Model, ModelError
from .classes import Classes

#: The framework whose models an exported file replaces, by task.
FRAMEWORKS = dict(detection='mmdet', segmentation='mmseg')


def is_exported(source) -> bool:
    """Whether a source is an exported file, judged by its name."""
    return str(source).lower().endswith('.onnx')


def open_exported(path, runtime: str = None) -> Model:
    """Open an exported detector or segmentor.

    Args:
        path: The file.
        runtime: ``'onnxruntime'`` (the default) or ``'openvino'``.

    Raises:
        CheckpointError: There is no such file, it is damaged or from another program, or it holds only a backbone.
        SetupError: The runtime is not installed.
    """
    try:
        model = Model(Path(path).expanduser(), runtime or 'onnxruntime')
    except ModelError as error:
        raise (SetupError if isinstance(error.__cause__, ImportError) else CheckpointError)(str(error)) from error
    if model.task not in FRAMEWORKS:
        raise CheckpointError(f'{path} holds only a {model.task}, which predicts nothing. Export the whole model, '
                              'without --backbone')
    return model


@MODELS.register_module()
class ExportedModel(BaseModel):
    """An exported file as a model of mmdet or mmseg: images from the pipeline in, data samples out, one at a time.

    Args:
        file: What `open_exported` returned, or the path of the file.
        runtime: As for `open_exported`.
    """

    def __init__(self, file, runtime: str = None):
        super().__init__()
        self.file = file if isinstance(file, Model) else open_exported(file, runtime)

    def __deepcopy__(self, memo):
        return self  # it has no weights that a copy could change

    def forward(self, *args, **kwargs):
        """Raise `CheckpointError`: an exported file cannot be trained."""
        raise CheckpointError('an exported file can only be used for prediction and testing')

    def test_step(self, data) -> list:
        """Predict the images of a batch; boxes, masks and labels are in pixels of the images before resizing.

        Args:
            data: ``inputs``, each (3, H, W), BGR, from 0 to 255; and ``data_samples``.
        """
        to_sample = self._detect if self.file.task == 'detection' else self._segment
        for image, sample in zip(data['inputs'], data['data_samples'], strict=True):
            image = image.cpu().round().clamp(0, 255) if image.is_floating_point() else image.cpu()
            to_sample(np.ascontiguousarray(image.numpy().astype(np.uint8)[::-1].transpose(1, 2, 0)), sample)
        if self.file.task == 'detection':  # as mmdet's preprocessor does, to draw the ground truth
            from mmdet.models.utils.misc import samplelist_boxtype2tensor
            samplelist_boxtype2tensor(data['data_samples'])
        return data['data_samples']

    def _detect(self, image, sample):
        found = self.file.objects(self.file.run(image[None]), image.shape[:2], sample.ori_shape[:2])
        values = dict(bboxes=found.boxes, scores=found.scores, labels=found.labels.astype(np.int64))
        if found.masks is not None:
            values['masks'] = found.masks
        sample.pred_instances = InstanceData(**{name: torch.from_numpy(value) for name, value in values.items()})

    def _segment(self, image, sample):
        outputs = self.file.run(image[None], sample.ori_shape[:2])
        sample.pred_sem_seg = PixelData(data=torch.from_numpy(outputs['labels'].astype(np.int64)))
        if 'scores' in outputs:
            sample.label_scores = PixelData(data=torch.from_numpy(outputs['scores']))


def config_of(file) -> Config:
    """Return a config that reads images as the config of the export did, from the metadata of the file."""
    metadata, detects = file.metadata, file.task == 'detection'
    load = dict(type='LoadImageFromFile')
    if not metadata.get('turns', True):
        load['color_type'] = 'color_ignore_orientation'
    rule = metadata.get('resize') or dict(rule='none')
    keeps = rule['rule'] == 'keep_ratio'
    resize = [] if rule['rule'] == 'none' else [
        dict(type='Resize', scale=tuple(rule['scale' if keeps else 'size']), keep_ratio=keeps)]
    pack = dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
    dataset = dict(type='CocoDataset' if detects else 'BaseSegDataset', metainfo=meta_of(file),
                   pipeline=[load, *resize, pack if detects else dict(type='PackSegInputs')])
    return Config(dict(default_scope=FRAMEWORKS[file.task], test_dataloader=dict(dataset=dataset)))


def meta_of(file) -> dict:
    """Return what the checkpoint has as ``dataset_meta``: class names, palette, numbers."""
    meta = dict(classes=file.classes, palette=[tuple(colour) for colour in file.metadata.get('palette') or ()])
    if file.task == 'detection':
        meta['category_ids'] = tuple(file.metadata['numbers'])
    return meta


def as_checkpoint(file) -> dict:
    """Return what `xcit_dense.weights.read_checkpoint` would return, without weights."""
    return dict(state_dict={}, meta=dict(dataset_meta=meta_of(file)))


def classes_of(file) -> Classes:
    """Return names and numbers of the classes as the export found them."""
    words = file.metadata.get('words') or {}
    return Classes(file.classes, tuple(file.metadata['numbers']), words.get('names_from', 'the exported file'),
                   words.get('numbers_from', 'the exported file'))
