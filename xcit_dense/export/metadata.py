"""The metadata of an exported file, for `xcit_dense.runtime` and other readers: strings by name, most of them JSON."""
import json
import logging
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from mmengine.logging import print_log

from .._utils.files import hash_of
from .._utils.text import counted, type_name
from ..config.framework import framework_of
from ..data.check.agreement import wanted_classes
from ..data.classes import difference_of
from ..data.datasets import class_of, datasets
from ..data.pipelines import turns_images
from ..errors import ConfigError
from ..predict.classes import test_dataset
from ..predict.exported import FRAMEWORKS
from ..predict.reading import reads_annotations
from .image import Preprocessing

#: Version of the names and their meaning; a reader rejects a later one.
FORMAT = '1'
_PACKAGES = ('xcit_dense', 'torch', 'onnx', 'onnxscript', 'onnxruntime', 'mmengine', 'mmdet', 'mmsegmentation')
#: Arguments of `Resize` that the rule contains; and other arguments, with the values that change nothing.
_OF_RESIZE = ('type', 'scale', 'keep_ratio')
_LEFT_OUT = dict(scale_factor=(None, ), interpolation=('bilinear', ), backend=('cv2', ),
                 clip_object_border=(True, False))


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
        kind, name = class_of(dataset, 'TRANSFORMS', step['type']), type_name(step['type'])
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
    if (framework := framework_of(cfg)) != FRAMEWORKS[file.task]:
        raise ConfigError(f'{source} is for {file.task}, but the config is for {framework}. Use the config of its '
                          f'training{_named(file)}')


def compare_with_config(cfg, file, source, sizes: bool = True):
    """Compare an exported file with the config of its test, in which the classes are already set.

    Different names for the same number of classes, and a different resize rule, are warnings in the log.

    Args:
        cfg: The config.
        file: An exported file from `xcit_dense.predict.exported.open_exported`.
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
