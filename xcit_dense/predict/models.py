"""Models that compute in another way: in bfloat16, or from an exported file, if that fits the config."""
import logging
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.model import BaseModel
from mmengine.registry import HOOKS, MODELS
from mmengine.structures import InstanceData, PixelData
from mmengine.utils import apply_to
from torch import Tensor

from .._utils.machine import can_use_bfloat16
from .._utils.text import counted, listed, type_name
from ..compat.masks import paste
from ..config.tasks import TASKS, task_named, task_of
from ..data.check.agreement import wanted_classes
from ..data.classes import difference_of
from ..data.datasets import datasets
from ..errors import CheckpointError, ConfigError, SetupError
from ..runtime import Model, ModelError
from .classes import Classes, test_dataset
from .reading import reads_annotations

#: Types that a model can compute in. float16 is not one: where it overflows has not been checked.
DTYPES = ('float32', 'bfloat16')
#: Heads whose forward outputs only scores and deltas, with the last layers that stay in float32. Other heads stay in
#: float32 completely: some pass pixel coordinates through their layers, and above 1024 bfloat16 has every 8th only.
_HEADS = dict(
    RPNHead=('rpn_cls', 'rpn_reg'), RetinaHead=('retina_cls', 'retina_reg'), FCNMaskHead=('conv_logits', ),
    **dict.fromkeys(('Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead'), ('fc_cls', 'fc_reg')),
    **dict.fromkeys(('FPNHead', 'UPerHead', 'FCNHead', 'SegformerHead'), ('conv_seg', )))
_FEATURES = {'backbone', 'neck'}
#: Arguments of `Resize` that the rule contains; and other arguments, with the values that change nothing.
_OF_RESIZE = ('type', 'scale', 'keep_ratio')
_LEFT_OUT = dict(scale_factor=[None], interpolation=['bilinear'], backend=['cv2'], clip_object_border=[True, False])


def set_dtype(model, dtype: str = 'float32') -> str:
    """Make a detector or segmentor compute in one of `DTYPES` at inference, on its device, and return that type.

    With bfloat16, these run under autocast: the backbone, the neck and the hidden layers of the heads of this
    package's configs. Their inputs and outputs are float32. These stay in float32: the last layers of these heads,
    other heads, all that is not a layer (boxes, NMS, RoIAlign, resizing of logits, argmax), and the backbone's Gram
    matrices, norms and softmax. If the device does not support bfloat16, where emulation would be slower, everything
    stays in float32, a log line says so, and ``'float32'`` is returned.

    Call it once; the model may be inside one for test-time augmentation. Another type raises `ConfigError`.
    """
    if dtype not in DTYPES:
        raise ConfigError(f'dtype must be one of {listed(DTYPES)}, got {dtype!r}')
    device = next(model.parameters()).device
    if dtype == 'float32' or not can_use_bfloat16(device):
        return 'float32'
    for parent in model.modules():
        parts = dict(parent.named_children())
        for name in parts.keys() & _FEATURES:
            parts[name].forward = partial(_in_bfloat16, device.type, parts[name].forward)
        for name in parts.keys() & _HEADS.get(type(parent).__name__, ()):
            parts[name].forward = partial(_in_float32, device.type, parts[name].forward)
        if type(parent).__name__ in _HEADS:
            parent.forward = partial(_in_bfloat16, device.type, parent.forward)
    return dtype


def _in_bfloat16(device, forward, *args, **kwargs):
    """Call a forward under autocast; its outputs are float32."""
    with torch.autocast(device, torch.bfloat16):
        outputs = forward(*args, **kwargs)
    return apply_to(outputs, lambda value: isinstance(value, Tensor) and value.dtype == torch.bfloat16, Tensor.float)


def _in_float32(device, forward, x):
    with torch.autocast(device, enabled=False):
        return forward(x.float())


@HOOKS.register_module()
class DtypeHook(Hook):
    """Tests a model in another type, see `set_dtype`: ``custom_hooks=[dict(type='DtypeHook', dtype=...)]``."""

    def __init__(self, dtype: str):
        self.dtype = dtype

    def before_test(self, runner):
        """Set the type; runs after `FuseHook`."""
        set_dtype(runner.model, self.dtype)
        self.dtype = 'float32'  # once, though several tests may follow


def is_exported(source) -> bool:
    """Whether a source is an exported file, judged by its name."""
    return str(source).lower().endswith('.onnx')


def open_exported(path, runtime: str = None) -> Model:
    """Open an exported detector or segmentor with ``'onnxruntime'`` (the default) or ``'openvino'``.

    Raises:
        CheckpointError: There is no such file, it is damaged or from another program, or it holds only a backbone.
        SetupError: The runtime is not installed.
    """
    try:
        model = Model(Path(path).expanduser(), runtime or 'onnxruntime')
    except ModelError as error:
        raise (SetupError if isinstance(error.__cause__, ImportError) else CheckpointError)(str(error)) from error
    if not any(task.name == model.task and task.graph for task in TASKS):
        raise CheckpointError(f'{path} holds only a {model.task}, which predicts nothing. Export the whole model, '
                              'without --backbone')
    return model


@MODELS.register_module()
class ExportedModel(BaseModel):
    """An exported file as a model of mmdet or mmseg: images from the pipeline in, data samples out, one at a time."""

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

        Its ``inputs`` are (3, H, W) each, BGR, from 0 to 255.
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
        outputs, size = self.file.run(image[None]), sample.ori_shape[:2]
        threshold = self.file.metadata.get('mask_threshold') or 0.
        masks = outputs.pop('masks', None) if threshold > 0 else None
        found = self.file.objects(outputs, image.shape[:2], size)
        values = dict(bboxes=found.boxes, scores=found.scores, labels=found.labels.astype(np.int64), masks=found.masks)
        sample.pred_instances = InstanceData(**{name: torch.from_numpy(value) for name, value in values.items()
                                                if value is not None})
        if masks is not None:
            sample.pred_instances.masks = paste(torch.from_numpy(masks[0, :len(found)]), sample.pred_instances.bboxes,
                                                *size, threshold)

    def _segment(self, image, sample):
        outputs = self.file.run(image[None], sample.ori_shape[:2])
        sample.pred_sem_seg = PixelData(data=torch.from_numpy(outputs['labels'].astype(np.int64)))
        if 'scores' in outputs:
            sample.label_scores = PixelData(data=torch.from_numpy(outputs['scores']))


def config_of(file) -> Config:
    """Return a config that reads images as the config of the export did, from the metadata of the file."""
    metadata, detects = file.metadata, file.task == 'detection'
    reads = 'color' if metadata.get('turns', True) else 'color_ignore_orientation'
    steps = [dict(type='LoadImageFromFile', color_type=reads)]
    rule = metadata.get('resize') or dict(rule='none')
    keeps = rule['rule'] == 'keep_ratio'
    if rule['rule'] != 'none':
        steps.append(dict(type='Resize', scale=tuple(rule['scale' if keeps else 'size']), keep_ratio=keeps))
    pack = dict(type='PackDetInputs', meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'))
    dataset = dict(type='CocoDataset' if detects else 'BaseSegDataset', metainfo=meta_of(file),
                   pipeline=[*steps, pack if detects else dict(type='PackSegInputs')])
    return Config(dict(default_scope=task_named(file.task).framework, test_dataloader=dict(dataset=dataset)))


def meta_of(file) -> dict:
    """Return what the checkpoint has as ``dataset_meta``: class names, palette, numbers."""
    meta = dict(classes=file.classes, palette=[tuple(colour) for colour in file.metadata.get('palette') or ()])
    if file.task == 'detection':
        meta['category_ids'] = tuple(file.metadata['numbers'])
    return meta


def classes_of(file) -> Classes:
    """Return names and numbers of the classes as the export found them."""
    words = file.metadata.get('words') or {}
    return Classes(file.classes, tuple(file.metadata['numbers']), words.get('names_from', 'the exported file'),
                   words.get('numbers_from', 'the exported file'))


def resize_rule(cfg) -> dict:
    """Return how images are resized before they go into the graph: the key ``resize`` of the metadata; `ConfigError` if
    the test pipeline of the config has a step that the rule cannot express."""
    dataset, rule = test_dataset(cfg), dict(rule='none')
    steps = dataset.get('pipeline') or [dict(type='nothing')]
    for step in steps[1:]:
        kind, name = dataset.class_of('TRANSFORMS', step['type']), type_name(step['type'])
        if reads_annotations(kind) or name.startswith('Pack'):
            continue
        _check(name == 'Resize', f'the step {name}', 'supports only loading and one Resize')
        _check(rule['rule'] == 'none', f'the step {name}', 'supports only one Resize')
        odd = [f'{key}={value!r}' for key, value in step.items()
               if key not in _OF_RESIZE and value not in _LEFT_OUT.get(key, ())]
        _check(not odd, f'the step Resize with {", ".join(odd)}', 'supports only scale and keep_ratio')
        scale = step.get('scale')
        scale = [scale, scale] if isinstance(scale, int) else list(scale or ())
        _check(len(scale) == 2, f'the step Resize with scale={step.get("scale")!r}', 'needs width and height')
        rule = dict(rule='keep_ratio', scale=scale) if step.get('keep_ratio') else dict(rule='fixed', size=scale)
    name, reads = type_name(steps[0]['type']), steps[0].get('color_type', 'color')
    _check(name == 'LoadImageFromFile' and reads in ('color', 'color_ignore_orientation'), f'the first step, {name}',
           'supports only images of three channels as LoadImageFromFile reads them')
    return rule


def _check(fits, what, words):
    if not fits:
        raise ConfigError(f'{what} of test_dataloader.dataset.pipeline cannot be exported: a file {words}. Change the '
                          'pipeline in your own config, or export only the backbone (--backbone)')


def check_task(cfg, file, source):
    """Raise `ConfigError` if an exported file has another task than the models of a config."""
    if (task := task_of(cfg).name) != file.task:
        raise ConfigError(f'{source} is for {file.task}, but the config is for {task}. Use the config of its '
                          f'training{_named(file)}')


def compare_with_config(cfg, file, source, sizes: bool = True):
    """Compare an exported file with the config of its test, in which the classes are already set.

    Another number of classes raises `ConfigError`. Different names for the same number and, unless the user chose the
    image size (``sizes``), a different resize rule are warnings in the log.
    """
    for dataset in datasets(cfg, ['test_dataloader']):
        names = wanted_classes(dataset, bool(cfg.get('classes_from_data')))
        if names and len(names) != len(file.classes):
            raise ConfigError(f'{source} has {counted(len(file.classes), "classes")}, but the test data of the config '
                              f'has {len(names):,}. Use the config of its training{_named(file)}')
        if names and (difference := difference_of(names, file.classes)):
            print_log(f'the class names of the test data and of {source} differ, or their order does: {difference}. '
                      'Classes are matched by index, so the metrics are meaningless for an index that is one class in '
                      'the data and another in the model', logger='current', level=logging.WARNING)
    with suppress(ConfigError):  # images that are read in a way that cannot be exported
        own, rule = file.metadata.get('resize'), resize_rule(cfg)
        if sizes and own and own != rule:
            print_log(f'{source} was exported for images resized by {_words(own)}, but this test resizes them by '
                      f'{_words(rule)}, as its config says. Use the config of the export{_named(file)}, or '
                      '--image-size', logger='current', level=logging.WARNING)


def _named(file):
    return f' ({file.metadata["config"]})' if file.metadata.get('config') else ''


def _words(rule):
    return ' '.join(map(str, [rule['rule'], *rule.get('scale', rule.get('size', ()))]))
