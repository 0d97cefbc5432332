"""The tasks of models, and what every room needs to know of them.

A new task is an entry here, with parts of its own. A part is named as ``module:name`` below the package and imported
when it is used, so that no task needs the framework of another.
"""
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import NamedTuple

from mmengine.registry import MODELS

from .._utils.text import packages_in, type_name
from ..compat.versions import CLASSIFICATION


class Views(NamedTuple):
    """How an image is tested several times."""
    ratios: tuple  # of the image size; the first view is the image as it is tested without augmentation
    model: str  # the type of the model that merges the predictions
    module: str = ''  # that registers it; '' for one of the framework
    replaced: str = ''  # the type of the framework that it takes the place of


@dataclass(frozen=True)
class Task:
    """What a kind of model is made for. A part, from recorder to augmented, is None if the task has none."""
    name: str
    framework: str | None  # the package of its models
    packages: tuple = ()  # what must be installed, as for `xcit_dense.compat.versions.check_versions`
    recorder: str | None = None  # what a report on a test keeps and writes, see `xcit_dense.report.content.Recorder`
    predictor: str | None = None  # a `xcit_dense.predict.predictor.Predictor`
    loaded: str | None = None  # what `xcit_dense.predict.load` returns
    graph: str | None = None  # the model as one graph, for export
    fit: str | None = None  # a `xcit_dense.config.fit.Fit`
    augmented: str | None = None  # returns the steps of an augmentation, see `xcit_dense.config.augment`
    views: Views | None = None  # of a test with augmentation
    has_square_images: bool = False  # whether the image size is one side, that of a crop
    sums_over_objects: bool = True  # whether a loss depends on what else is in the batch, such as the number of objects

    def part(self, name: str):
        """Return a part by the name of its attribute; None if the task has none."""
        place = getattr(self, name)
        return place and resolve_name(f'xcit_dense.{place}')


_DETECTION = Task(
    'detection', 'mmdet', ('mmdet', ),
    recorder='report.detection:DetectionRecorder', predictor='predict.predictor:DetectionPredictor',
    loaded='predict.load:LoadedDetector', graph='export.detector:DetectorGraph',
    fit='config.fit:OF_OBJECTS', augmented='config.augment:steps_for_boxes',
    views=Views((1, 0.75, 1.25), 'MaskTTAModel', 'xcit_dense.for_mmdet', 'DetTTAModel'))
_SEGMENTATION = Task(
    'segmentation', 'mmseg', ('mmseg', ),
    recorder='report.segmentation:SegmentationRecorder', predictor='predict.predictor:SegmentationPredictor',
    loaded='predict.load:LoadedSegmentor', graph='export.segmentor:SegmentorGraph',
    fit='config.fit:OF_MAPS', augmented='config.augment:steps_for_maps',
    views=Views((1, 0.5, 0.75, 1.25, 1.5, 1.75), 'LowMemorySegTTAModel', 'xcit_dense.for_mmseg', 'SegTTAModel'))
_CLASSIFICATION = Task(
    'classification', 'mmpretrain', tuple(CLASSIFICATION),
    recorder='report.classification:ClassificationRecorder', augmented='config.augment:steps_for_classes',
    views=Views((1, ), 'AverageClsScoreTTA'), has_square_images=True, sums_over_objects=False)
#: What a model learns without labels.
_FEATURES = replace(_CLASSIFICATION, name='features', recorder=None, views=None)
TASKS = (_DETECTION, _SEGMENTATION, _CLASSIFICATION, _FEATURES)


def task_of(cfg) -> Task:
    """Return the task of a config; one without parts, with the default scope as framework, if it is unknown.

    It is that of the framework of the model's class, or of a base of it: pure-Python configs have no default scope, but
    use names that the framework registers. A model that learns features has no classes.
    """
    if learns_without_labels(cfg):
        return _FEATURES
    model, scope = cfg.get('model'), cfg.get('default_scope')
    kind = class_of(model.get('type'), MODELS, scope) if isinstance(model, dict) else None
    framework = next((name for name in packages_in(kind) if name in {task.framework for task in TASKS}), scope)
    unknown = Task(framework or 'an unknown framework', framework)
    return next((task for task in TASKS if task.framework == framework), unknown)


def class_of(kind, registry, scope=None):
    """Return the class or function of a type, as a config has it, in mmengine's registry for it; None if there is none.
    The scope is by default the current one."""
    if not isinstance(kind, str):
        return kind if callable(kind) else None
    with registry.switch_scope_and_registry(scope) as inner:
        try:
            found = inner.get(kind)
        except RuntimeError:  # mmengine raises it for a dotted name that does not exist
            return None
    return found if callable(found) else None


def learns_without_labels(cfg) -> bool:
    """Whether the model of a config is this package's `DINO`; mmdet's detector of that name has no ``head``."""
    model = cfg.get('model') or {}
    return type_name(model.get('type')) == 'DINO' and 'head' in model


def packages_of(framework) -> tuple:
    """Return the packages that models of a framework need; none for an unknown framework."""
    return next((task.packages for task in TASKS if task.framework == framework), ())


def task_named(name: str) -> Task:
    """Return a task by its name."""
    return next(task for task in TASKS if task.name == name)


def tasks_with(part: str) -> str:
    """Return the names of the tasks that have a part, for errors."""
    return ' or '.join(task.name for task in TASKS if getattr(task, part))
