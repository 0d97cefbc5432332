"""How images are prepared for an exported file: in its graph, and by its readers, such as `xcit_dense.runtime`.

Readers know it from the metadata of the file: strings by name, most of them JSON.
"""
import json
import logging
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from .._utils.files import hash_of
from .._utils.text import counted, type_name
from ..compat.mmengine_private import swaps_channels
from ..data.check.agreement import wanted_classes
from ..data.classes import difference_of
from ..data.datasets import datasets
from ..data.pipelines import turns_images
from ..errors import ConfigError
from ..predict.classes import test_dataset
from ..predict.reading import reads_annotations
from ..tasks import task_of

#: Version of the names and their meaning; a reader rejects a later one.
FORMAT = '1'
_PACKAGES = ('xcit_dense', 'torch', 'onnx', 'onnxscript', 'onnxruntime', 'mmengine', 'mmdet', 'mmsegmentation')
#: Height and width for tracing; a file accepts any batch, height and width.
TRACED = 224, 288
#: Images as the input of a graph: an example, and its free dimensions.
IMAGE = torch.zeros(2, *TRACED, 3, dtype=torch.uint8), dict.fromkeys(range(3), torch.export.Dim.DYNAMIC)
#: Arguments of `Resize` that the rule contains; and other arguments, with the values that change nothing.
_OF_RESIZE = ('type', 'scale', 'keep_ratio')
_LEFT_OUT = dict(scale_factor=(None, ), interpolation=('bilinear', ), backend=('cv2', ),
                 clip_object_border=(True, False))


class Preprocessing(nn.Module):
    """Normalises and pads a batch of images of one size, as mmdet's and mmseg's preprocessors do for prediction.

    Args:
        preprocessor: The ``data_preprocessor`` of a model.

    Raises:
        ConfigError: It has another type, or does not normalise three channels.
    """

    #: Height and width that smaller images are padded to; None if there is no such size.
    pad_size = None
    #: Height and width are padded to multiples of this.
    pad_divisor = 1

    def __init__(self, preprocessor):
        super().__init__()
        # the class that has the forward: a derived class may change anything else
        kind = next((kind.__name__ for kind in type(preprocessor).__mro__ if 'forward' in vars(kind)), None)
        if kind == 'SegDataPreProcessor':
            swaps, self.pad_value = preprocessor.channel_conversion, preprocessor.pad_val
            padding = preprocessor.test_cfg or {}
            self.pad_size, self.pad_divisor = padding.get('size'), padding.get('size_divisor') or 1
        elif kind in ('DetDataPreprocessor', 'ImgDataPreprocessor'):
            swaps, self.pad_value = swaps_channels(preprocessor), preprocessor.pad_value
            self.pad_divisor = preprocessor.pad_size_divisor
        else:
            raise ConfigError(f'model.data_preprocessor is a {type(preprocessor).__name__}, which cannot be exported. '
                              'SegDataPreProcessor and DetDataPreprocessor can')
        mean, std = (torch.as_tensor(getattr(preprocessor, name, fresh)).detach().float().cpu().flatten()
                     for name, fresh in (('mean', 0.), ('std', 1.)))
        if {len(mean), len(std)} - {1, 3}:
            raise ConfigError(f'mean and std of model.data_preprocessor are for {max(len(mean), len(std))} channels, '
                              'but an exported model needs images of three: R, G and B')
        #: Whether the model expects B, G and R, as mmcv reads images, instead of R, G and B.
        self.is_bgr = not swaps
        self.register_buffer('subtracted', mean.expand(3).clone().view(3, 1, 1), persistent=False)
        self.register_buffer('divided_by', std.expand(3).clone().view(3, 1, 1), persistent=False)

    @property
    def mean(self) -> list:
        """Mean of R, G and B."""
        return self._of_rgb(self.subtracted)

    @property
    def std(self) -> list:
        """Standard deviation of R, G and B."""
        return self._of_rgb(self.divided_by)

    @property
    def pads(self) -> bool:
        """Whether images may be padded."""
        return self.pad_size is not None or self.pad_divisor > 1

    def forward(self, image: Tensor) -> Tensor:
        """Return images (B, H, W, 3), RGB, uint8, as input of the model: (B, 3, h, w) float32.

        h and w are H and W, or larger: padding is added at the bottom and at the right.
        """
        x = self.normalised(image)
        height, width = x.shape[-2:]
        if self.pad_size is not None:
            bottom, right = (torch.sym_max(wanted - given, 0) for wanted, given in
                             zip(self.pad_size, (height, width), strict=True))
        elif self.pad_divisor > 1:
            bottom, right = -height % self.pad_divisor, -width % self.pad_divisor
        else:
            return x
        return nn.functional.pad(x, (0, right, 0, bottom), value=self.pad_value)

    def normalised(self, image: Tensor) -> Tensor:
        """Return the result of `forward` before padding."""
        x = image.permute(0, 3, 1, 2)
        if self.is_bgr:
            x = x.flip(1)
        return (x.float() - self.subtracted) / self.divided_by

    def _of_rgb(self, values):
        values = values.flatten().tolist()
        return values[::-1] if self.is_bgr else values


def metadata_of(predictor, cfg, task: str, config, checkpoint) -> dict:
    """Return the metadata for an exported file.

    Args:
        predictor: From `xcit_dense.predict.predictor.build_predictor`.
        cfg: Its config.
        task: ``detection``, ``segmentation`` or ``backbone``.
        config: Name of the config.
        checkpoint: Path of the weight file.
    """
    model, classes = predictor.model, predictor.classes
    before = Preprocessing(model.data_preprocessor)
    words = dict(names_from=classes.names_from, numbers_from=classes.numbers_from, model=type(model).__name__)
    values = dict(
        classes=list(classes.names), palette=[list(map(int, colour)) for colour in predictor.palette],
        numbers=list(map(int, classes.numbers)), mean=before.mean, std=before.std,
        resize=resize_rule(cfg), turns=turns_images(test_dataset(cfg)),
        pad_divisor=before.pad_divisor, pad_value=before.pad_value,
        mask_threshold=model.test_cfg.rcnn.mask_thr_binary if getattr(model, 'with_mask', False) else None,
        checkpoint=Path(checkpoint).name, versions=_versions(), words=words)
    return dict({key: json.dumps(value) for key, value in values.items()}, xcit_dense=FORMAT, task=task,
                config=str(config), checkpoint_sha256=hash_of(checkpoint))


def resize_rule(cfg) -> dict:
    """Return how images are resized before they go into the graph: the key ``resize`` of the metadata.

    Raises:
        ConfigError: The test pipeline of the config has a step that the rule cannot express.
    """
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


def _versions():
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # another distribution, such as a fork
            continue
    return found


def check_task(cfg, file, source):
    """Raise `ConfigError` if an exported file has another task than the models of a config."""
    if (task := task_of(cfg).name) != file.task:
        raise ConfigError(f'{source} is for {file.task}, but the config is for {task}. Use the config of its '
                          f'training{_named(file)}')


def compare_with_config(cfg, file, source, sizes: bool = True):
    """Compare an exported file with the config of its test, in which the classes are already set.

    Different names for the same number of classes, and a different resize rule, are warnings in the log.

    Args:
        cfg: The config.
        file: An exported file from `xcit_dense.predict.models.open_exported`.
        source: Its path.
        sizes: Whether to warn if the image size differs; False if the user chose it.

    Raises:
        ConfigError: The file has another number of classes.
    """
    for dataset in datasets(cfg, ['test_dataloader']):
        names = wanted_classes(dataset, bool(cfg.get('classes_from_data')))
        if names and len(names) != len(file.classes):
            raise ConfigError(f'{source} has {counted(len(file.classes), "classes")}, but the test data of the config '
                              f'has {len(names):,}. Use the config of its training{_named(file)}')
        if names and (difference := difference_of(names, file.classes)):
            _warn(f'the class names of the test data and of {source} differ, or their order does: {difference}. '
                  'Classes are matched by index, so the metrics are meaningless for an index that is one class in the '
                  'data and another in the model')
    with suppress(ConfigError):  # images that are read in a way that cannot be exported
        own, rule = file.metadata.get('resize'), resize_rule(cfg)
        if sizes and own and own != rule:
            _warn(f'{source} was exported for images resized by {_words(own)}, but this test resizes them by '
                  f'{_words(rule)}, as its config says. Use the config of the export{_named(file)}, or --image-size')


def _named(file):
    return f' ({file.metadata["config"]})' if file.metadata.get('config') else ''


def _words(rule):
    return ' '.join(map(str, [rule['rule'], *rule.get('scale', rule.get('size', ()))]))


def _warn(words):
    print_log(words, logger='current', level=logging.WARNING)
