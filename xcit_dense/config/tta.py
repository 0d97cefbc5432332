"""Test with test-time augmentation: what the views of an image are, and which model merges their predictions."""
import copy
import math

from mmengine.config import Config, ConfigDict
from mmengine.logging import print_log
from mmengine.utils import import_modules_from_strings

from ..data.datasets import datasets, dicts_in
from ..errors import ConfigError
from ..text import type_name
from .framework import framework_of

#: Factors of the image size in each framework; the first view is the image as it is tested without augmentation.
_RATIOS = dict(mmdet=(1, 0.75, 1.25), mmseg=(1, 0.5, 0.75, 1.25, 1.5, 1.75), mmpretrain=(1, ))
_MODELS = dict(mmdet='MaskTTAModel', mmseg='LowMemorySegTTAModel', mmpretrain='AverageClsScoreTTA')
#: Where the models of this package are.
_MODULES = dict(MaskTTAModel='xcit_dense.for_mmdet', LowMemorySegTTAModel='xcit_dense.for_mmseg')
#: Those of the frameworks that the models of this package replace.
_REPLACED = dict(DetTTAModel='MaskTTAModel', SegTTAModel='LowMemorySegTTAModel')
_FLIP_KEYS = ('flip', 'flip_direction')


def set_tta(cfg: Config):
    """Test with test-time augmentation, as ``--tta`` asks.

    ``tta_model`` and ``tta_pipeline`` of the config are used; what it lacks is made from ``model`` and the pipelines of
    its test data.

    Raises:
        ConfigError: The framework or the data set is unknown, or a pipeline has no steps.
    """
    framework = framework_of(cfg)
    if framework not in _MODELS:
        raise ConfigError(f'--tta supports models of {", ".join(_MODELS)}; the model {cfg.model.get("type")!r} is of '
                          'none of them')
    told = []
    for dataset in datasets(cfg, ['test_dataloader']):
        if cfg.get('tta_pipeline'):
            dataset.pipeline = copy.deepcopy(cfg.tta_pipeline)
            told.append('the tta_pipeline of the config')
        elif not dataset.get('pipeline'):
            raise ConfigError(f'--tta: the data set {type_name(dataset.get("type"))} of test_dataloader has no '
                              'pipeline to augment. Set tta_pipeline in the config')
        else:
            dataset.pipeline, words = _augmented(dataset.pipeline, framework)
            told.append(words)
    wrapper = dict(cfg.get('tta_model') or dict(type=_MODELS[framework]))
    wrapper['type'] = _REPLACED.get(type_name(wrapper['type']), wrapper['type'])
    if wrapper['type'] == _MODELS['mmdet'] and not wrapper.get('tta_cfg'):
        wrapper['tta_cfg'] = _merging(cfg.model)
    if module := _MODULES.get(type_name(wrapper['type'])):
        _import(cfg, module)
    cfg.model = ConfigDict(wrapper, module=cfg.model)
    print_log(f'--tta merges the predictions of several views of each image: {"; ".join(dict.fromkeys(told))}',
              logger='current')


def _import(cfg, module):
    """Import a module, also where the config is loaded again."""
    custom = dict(cfg.get('custom_imports') or {})
    known = custom.get('imports') or []
    custom['imports'] = list(dict.fromkeys([*([known] if isinstance(known, str) else known), module]))
    cfg.custom_imports = custom
    import_modules_from_strings(module)


def _augmented(pipeline, framework):
    """Return a pipeline with the views in it, and what they are, as text."""
    steps = [dict(step) for step in pipeline]
    flips = [dict(type='RandomFlip', prob=0.), dict(type='RandomFlip', prob=1.)]
    resize = next((place for place, step in enumerate(steps) if 'Resize' in type_name(step.get('type'))), None)
    for step in steps:
        if step.get('meta_keys'):  # the flip is undone by them
            step['meta_keys'] = (*step['meta_keys'], *(key for key in _FLIP_KEYS if key not in step['meta_keys']))
    ratios = _RATIOS[framework]
    if len(ratios) == 1:
        return [*steps[:-1], dict(type='TestTimeAug', transforms=[flips, steps[-1:]])], 'as it is, and flipped'
    if resize is None:  # after the image is loaded, before annotations and padding
        start = end = 1
        sizes = [dict(type='Resize', scale_factor=float(ratio), keep_ratio=True) for ratio in ratios]
    else:
        start, end = resize, resize + 1
        sizes = [_resized(steps[resize], ratio) for ratio in ratios]
    if None in sizes:  # a step of another kind
        sizes, ratios = [steps[resize]], (1, )
    rest = [[_padded(step, max(ratios))] for step in steps[end:]]
    words = f'{", ".join(f"{ratio:g}" for ratio in sorted(ratios))} x the image size, each as it is and flipped'
    return [*steps[:start], dict(type='TestTimeAug', transforms=[sizes, flips, *rest])], words


def _resized(step, ratio):
    """Return a step that resizes to a multiple of its size, None if it has no size."""
    for key in ('scale', 'scale_factor'):
        if value := step.get(key):
            whole = key == 'scale'
            several = isinstance(value, (list, tuple))
            values = [max(1, round(v * ratio)) if whole else v * ratio for v in (value if several else [value])]
            return dict(step, **{key: tuple(values) if several else values[0]})
    return None


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
