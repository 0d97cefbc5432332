"""What the options of a test change in a config: its resolution, its views, and how features are judged."""
import copy
import math

from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.utils import import_modules_from_strings

from .._utils.text import type_name
from ..data.classes import outputs_of
from ..data.datasets import LOADERS, datasets, dicts_in
from ..errors import ConfigError
from .options import add_hook
from .tasks import learns_without_labels, task_of, tasks_with

#: Loaders whose data such a test reads.
READ = (LOADERS[0], LOADERS[2])
#: Settings of a data loader that do not depend on what is done with its images.
_LOADER_KEYS = ('num_workers', 'pin_memory', 'prefetch_factor', 'multiprocessing_context', 'timeout')
_FLIP_KEYS = ('flip', 'flip_direction')


def set_test_size(cfg, size: int = None, crop_ratio: float = None):
    """Make a classifier's test resize the shorter side of an image to ``size / crop_ratio`` and crop the centre;
    `ConfigError` if a value is out of range, or the pipeline does not have these two steps."""
    for dataset in datasets(cfg, LOADERS[-1:]):
        side, ratio = find_resolution(dataset, size, crop_ratio)
        resize, crop = _resize_and_crop(dataset)
        if not crop:
            raise ConfigError('--size and --crop-ratio are for classifiers, whose test pipeline resizes the shorter '
                              "side (ResizeEdge, edge='short', scale=N) and crops a square (CenterCrop, "
                              'crop_size=N), which this config does not have. For other models set the scales in the '
                              'test_dataloader of the config')
        crop['crop_size'] = side
        resize['scale'] = round(side / ratio)


def find_resolution(dataset=None, size: int = None, crop_ratio: float = None) -> tuple:
    """Return the side of the crop in pixels, and the share of the shorter side that it keeps, above 0 and at most 1.

    What is omitted is that of the pipeline of a data set; without the two steps in it, the side is None and the share
    1. `ConfigError` if a value is out of range.
    """
    if size is not None and size < 1:
        raise ConfigError(f'--size must be 1 or more pixels, got {size}')
    if crop_ratio is not None and not 0 < crop_ratio <= 1:
        raise ConfigError(f'--crop-ratio must be above 0 and at most 1, got {crop_ratio}')
    resize, crop = _resize_and_crop(dataset or {})
    if not crop:
        return size, crop_ratio or 1.
    side = square_side(crop['crop_size'])
    return size or side, crop_ratio or min(side / resize['scale'], 1.)


def _resize_and_crop(dataset):
    """Return the steps of a pipeline that resize the shorter side and crop a square; empty dicts without both."""
    steps = {type_name(step.get('type')): step for step in dicts_in(dataset.get('pipeline'))}
    resize, crop = steps.get('ResizeEdge') or {}, steps.get('CenterCrop') or {}
    sides = is_side(resize.get('scale')) and square_side(crop.get('crop_size'))
    return (resize, crop) if sides and resize.get('edge', 'short') == 'short' else ({}, {})


def square_side(value):
    """Return the pixels of a length, or of a pair of two that are equal; None for anything else."""
    if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return value if is_side(value) else None


def is_side(value) -> bool:
    """Whether a value is a side in pixels."""
    return isinstance(value, int) and value > 0


def check_labelled(cfg: Config, name, option: str = None):
    """Raise `ConfigError`, with its name, if a config to test has no labels, or if it is not of a classifier where
    features of whole images are judged: with the option ``--knn`` or ``--linear``."""
    kind = type_name(((cfg.get('model') or {}).get('backbone') or {}).get('type')) or 'unknown'
    if learns_without_labels(cfg):
        raise ConfigError(f'{option or "a test"} needs labelled images, and {name} is a config for images '
                          'without labels: give the config of a classifier, such as xcit_s12_p16_custom, with '
                          f'model.backbone.arch={cfg.model.backbone.get("arch")}'
                          f'{"" if option else ", and --knn or --linear"}')
    if option and (kind != 'XCiTClassifier' or not cfg.get(LOADERS[0])):
        raise ConfigError(f'{option} needs the config of a classifier (XCiTClassifier) with training images, such as '
                          f'xcit_s12_p16_custom: it learns from features of whole images. {name} has the backbone '
                          f'{kind}' + ('' if cfg.get(LOADERS[0]) else f' and no {LOADERS[0]}'))


def set_knn(cfg: Config, k: int):
    """Test with a vote of the ``k`` nearest training images, as ``--knn`` asks."""
    pipeline = datasets(cfg, LOADERS[2:])[0]['pipeline']
    _judge(cfg, 'KNN', loader=_loader(cfg, pipeline, cfg[LOADERS[2]].get('batch_size')), k=k)


def set_linear(cfg: Config, epochs: int, short: bool = False):
    """Test with a linear layer that is trained on the features for ``epochs``, as ``--linear`` asks.

    Its images are cropped at random to the size of the test and flipped; nothing else is augmented. The short form sees
    them as in the test. `ConfigError` if the pipeline of the test does not show at which size it crops.
    """
    dataset = datasets(cfg, LOADERS[2:])[0]
    pipeline, size = dataset['pipeline'], cfg[LOADERS[2]].get('batch_size')
    if not short:
        side, _ = find_resolution(dataset)
        if side is None:
            raise ConfigError('--linear crops the training images to the size of the test, but the pipeline of '
                              "test_dataloader does not show it: it needs ResizeEdge (edge='short') and CenterCrop; "
                              'or use --linear short, which does not crop them')
        replaced = dict(
            ResizeEdge=dict(type='RandomResizedCrop', scale=side, backend='pillow', interpolation='bilinear'),
            CenterCrop=dict(type='RandomFlip', prob=0.5, direction='horizontal'))
        pipeline = [replaced.get(type_name(step.get('type')), step) for step in pipeline]
        size = cfg[LOADERS[0]].get('batch_size') or size
    _judge(cfg, 'LinearProbe', loader=_loader(cfg, pipeline, size, shuffle=not short), epochs=epochs, short=short)


def _judge(cfg, kind, **options):
    """Replace the head of a classifier, and add the hook that fills in the new one."""
    model = cfg.model
    backbone = dict(model.backbone, num_classes=0, drop_path_rate=0., init_cfg=None)
    head = dict(type=f'{kind}Head', num_classes=outputs_of(model) or 1000)  # the default of the backbone
    cfg.model = ConfigDict(type='ImageClassifier', data_preprocessor=model.get('data_preprocessor'), backbone=backbone,
                           head=head)
    add_hook(cfg, f'{kind}Hook', **options)


def _loader(cfg, pipeline, batch_size, shuffle=False):
    """Return a loader of the training images in another pipeline, each once: wrappers may repeat images."""
    given = cfg[LOADERS[0]]
    parts = [dict(copy.deepcopy(dict(dataset)), pipeline=copy.deepcopy(list(pipeline)))
             for dataset in datasets(cfg, LOADERS[:1])]
    dataset = parts[0] if len(parts) == 1 else dict(type='ConcatDataset', datasets=parts)
    return dict({key: given[key] for key in _LOADER_KEYS if key in given}, batch_size=batch_size or 1,
                persistent_workers=shuffle and bool(given.get('num_workers')),
                sampler=dict(type='DefaultSampler', shuffle=shuffle), dataset=dataset)


def set_tta(cfg: Config):
    """Test with test-time augmentation, as ``--tta`` asks.

    ``tta_model`` and ``tta_pipeline`` of the config are used; what it lacks is made from ``model`` and the pipelines of
    its test data. `ConfigError` if the framework or the data set is unknown, or a pipeline has no steps.
    """
    views = task_of(cfg).views
    if views is None:
        raise ConfigError(f'--tta supports models for {tasks_with("views")}; the model {cfg.model.get("type")!r} is '
                          'for none of them')
    for dataset in datasets(cfg, ['test_dataloader']):
        if cfg.get('tta_pipeline'):
            dataset['pipeline'] = copy.deepcopy(cfg.tta_pipeline)
        elif not dataset.get('pipeline'):
            raise ConfigError(f'--tta: the data set {type_name(dataset.get("type"))} of test_dataloader has no '
                              'pipeline to augment. Set tta_pipeline in the config')
        else:
            dataset['pipeline'] = _augmented(dataset['pipeline'], views.ratios)
    wrapper = dict(cfg.get('tta_model') or dict(type=views.model))
    if type_name(wrapper['type']) == views.replaced:
        wrapper['type'] = views.model
    if wrapper['type'] == 'MaskTTAModel' and not wrapper.get('tta_cfg'):
        wrapper['tta_cfg'] = _merging(cfg.model)
    if views.module and type_name(wrapper['type']) == views.model:
        import_modules_from_strings(views.module)
    cfg.model = ConfigDict(wrapper, module=cfg.model)
    print_log('--tta merges the predictions of several views of each image: '
              + ('the tta_pipeline of the config' if cfg.get('tta_pipeline') else
                 f'{", ".join(map(str, views.ratios))} x its size (if a step that is known resizes it), as it is and '
                 'flipped'), logger='current')


def _augmented(pipeline, ratios):
    """Return a pipeline with the views in it."""
    steps = [dict(step) for step in pipeline]
    flips = [dict(type='RandomFlip', prob=0.), dict(type='RandomFlip', prob=1.)]
    resize = next((place for place, step in enumerate(steps) if 'Resize' in type_name(step.get('type'))
                   and (step.get('scale') or step.get('scale_factor'))), None)
    for step in steps:
        if step.get('meta_keys'):  # the flip is undone by them
            step['meta_keys'] = (*step['meta_keys'], *(key for key in _FLIP_KEYS if key not in step['meta_keys']))
    if len(ratios) == 1:
        return [*steps[:-1], dict(type='TestTimeAug', transforms=[flips, steps[-1:]])]
    if resize is None:  # after the image is loaded, before annotations and padding
        return [steps[0], dict(type='TestTimeAug', transforms=[flips, *([step] for step in steps[1:])])]
    sizes = [_resized(steps[resize], ratio) for ratio in ratios]
    rest = [[_padded(step, max(ratios))] for step in steps[resize + 1:]]
    return [*steps[:resize], dict(type='TestTimeAug', transforms=[sizes, flips, *rest])]


def _resized(step, ratio):
    """Return a step that resizes to a multiple of its size."""
    key = 'scale' if step.get('scale') else 'scale_factor'
    several = isinstance(step[key], (list, tuple))
    values = [max(1, round(value * ratio)) if key == 'scale' else value * ratio
              for value in (step[key] if several else [step[key]])]
    return dict(step, **{key: tuple(values) if several else values[0]})


def _padded(step, ratio):
    """Return a step; if it pads to a size, one that pads to the size of the largest view."""
    if type_name(step.get('type')) == 'Pad' and step.get('size'):
        size = step['size'] if isinstance(step['size'], (list, tuple)) else (step['size'], ) * 2
        step = dict(step, size=tuple(math.ceil(length * ratio) for length in size))
    return step


def _merging(model):
    """Return how the boxes of all views are merged: as the model merges its own."""
    found = [part for part in dicts_in(model.get('test_cfg') or {}) if part.get('nms') and part.get('max_per_img')]
    test_cfg = (model.get('test_cfg') or {}).get('rcnn') or (found[-1] if found else {})
    return dict(nms=test_cfg.get('nms') or dict(type='nms', iou_threshold=0.5),
                max_per_img=test_cfg.get('max_per_img') or 100)
