"""The augmentations ``light`` and ``strong``, made of the steps of a config's framework."""
from mmengine.config import Config

from .._utils.text import type_name
from ..data.datasets import LOADERS, argument_of, datasets, dicts_in
from ..errors import ConfigError
from .image_size import box_of
from .tasks import task_of, tasks_with

#: The colour of pixels that no image covers, and ImageNet's mean; both in the order blue, green, red.
_GREY, _MEAN = (114, 114, 114), (104, 116, 124)
#: Small changes of colour.
_MILD_COLOUR = dict(type='PhotoMetricDistortion', brightness_delta=16, contrast_range=(0.8, 1.2),
                    saturation_range=(0.8, 1.2), hue_delta=9)
_COLOUR = dict(type='PhotoMetricDistortion')
_FLIP = dict(type='RandomFlip', prob=0.5)
#: Drops the objects that a crop or another object hides completely; an image may end up without any.
_DROP = dict(type='FilterAnnotations', min_gt_bbox_wh=(1, 1), keep_empty=False)


def set_augmentation(cfg: Config, strength: str):
    """Replace the steps between the loading and the packing of the training images by ``light`` or ``strong`` ones.

    - Light: horizontal flips, scales from 0.8 to 1.25, and small changes of colour.
    - Strong: scales from 0.5 to 2 with crops, and larger changes of colour. For detection also objects pasted in from
      another image (mmdet's `CopyPaste`) or, if no masks are loaded, four images in one (mmdet's `Mosaic`, which does
      not support masks).
    - Classifiers: light is crops and changes of colour; strong is the recipe for ImageNet, without mixing.

    `ConfigError` if the framework of the config is unknown, its pipeline packs no images, or its data set mixes images
    in its own way.
    """
    make = task_of(cfg).part('augmented')
    inner = datasets(cfg, LOADERS[:1]) if (cfg.get(LOADERS[0]) or {}).get('dataset') else []
    if make is None or not inner:
        raise ConfigError(f'--augment {strength} needs a config for {tasks_with("augmented")} with a '
                          f'train_dataloader.dataset; this one is for {task_of(cfg).name}. Write the steps into the '
                          'pipeline of its data set yourself')
    whole = cfg[LOADERS[0]]['dataset']
    if any(type_name(step.get('type')) in ('MultiCrop', 'MultiView') for step in dicts_in(whole)):
        raise ConfigError(f'--augment {strength} would replace the views that this config learns from. Omit it; '
                          '--cfg-options train_dataloader.dataset.pipeline.1.KEY=VALUE sets the arguments of MultiCrop')
    if any('dataset' in node and node.get('pipeline') for node in dicts_in(whole)):
        raise ConfigError(f'--augment {strength}: the data set of this config mixes images in its own way. Write the '
                          'steps into the pipelines of train_dataloader.dataset yourself, or omit --augment')
    for dataset in inner:
        loading, packing = _parts(dataset, strength)
        own, mixed = make(cfg, dataset, strength)
        dataset['pipeline'] = [*loading, *own] if mixed else [*loading, *own, *packing]
    if mixed:
        cfg[LOADERS[0]]['dataset'] = dict(type='MultiImageMixDataset', dataset=whole, pipeline=[*mixed, *packing])


def _parts(dataset, strength):
    """Return the steps of a pipeline that load, at its beginning, and the one that packs, at its end."""
    steps = list(dataset.get('pipeline') or [])
    loads = next((i for i, step in enumerate(steps) if not type_name(step.get('type')).startswith('Load')), len(steps))
    if not loads or not type_name(steps[-1].get('type')).startswith('Pack'):
        raise ConfigError(f'--augment {strength} needs a training pipeline that begins with steps that load and ends '
                          'with one that packs. Write the steps into the pipeline of this config yourself')
    return steps[:loads], steps[-1:]


def steps_for_boxes(cfg, dataset, strength):
    box = box_of(cfg) or (1333, 800)
    if strength == 'light':
        return [dict(type='RandomResize', scale=box, ratio_range=(0.8, 1.25), keep_ratio=True), _FLIP, _MILD_COLOUR], ()
    canvas = width, height = _canvas(box)
    loads = [step for step in dataset['pipeline'] if type_name(step.get('type')) == 'LoadAnnotations']
    kinds = [dataset.class_of('TRANSFORMS', step['type']) for step in loads]
    if any(argument_of(kind, step, 'with_mask', False) for kind, step in zip(kinds, loads, strict=True)):
        for step in loads:
            step.pop('poly2mask', None)  # objects are pasted as pixels
        own = [dict(type='RandomResize', scale=canvas, ratio_range=(0.5, 2.0), keep_ratio=True),
               dict(type='RandomCrop', crop_type='absolute', crop_size=canvas, recompute_bbox=True,
                    allow_negative_crop=True), _DROP, _FLIP, dict(type='Pad', size=canvas, pad_val=dict(img=_GREY))]
        return own, [dict(type='CopyPaste', max_num_pasted=100), _DROP, _COLOUR]
    return [], [dict(type='Mosaic', img_scale=canvas, pad_val=_GREY[0]),
                dict(type='RandomAffine', scaling_ratio_range=(0.5, 1.5), max_rotate_degree=0., max_shear_degree=0.,
                     border=(-(width // 2), -(height // 2)), border_val=_GREY), _DROP, _FLIP, _COLOUR]


def _canvas(box):
    """Return the box or, if it is long like that of the usual test (for either orientation), a square as large."""
    return tuple(box) if max(box) < 1.5 * min(box) else (round((box[0] * box[1])**0.5 / 32) * 32, ) * 2


def steps_for_maps(cfg, dataset, strength):
    box, crops = box_of(cfg) or (2048, 512), [step['crop_size'] for step in dicts_in(dataset.get('pipeline') or ())
                                              if step.get('crop_size')]
    preprocessor = (cfg.get('model') or {}).get('data_preprocessor') or {}
    crop = crops[0] if crops else preprocessor.get('size') or (min(box), min(box))
    spread, colour = ((0.8, 1.25), _MILD_COLOUR) if strength == 'light' else ((0.5, 2.0), _COLOUR)
    return [dict(type='RandomResize', scale=box, ratio_range=spread, keep_ratio=True),
            dict(type='RandomCrop', crop_size=crop, cat_max_ratio=0.75), _FLIP, colour], ()


def steps_for_classes(cfg, dataset, strength):
    found = [step for step in dicts_in(dataset.get('pipeline') or ()) if type_name(step.get('type')) in (
        'RandomResizedCrop', 'RandomCrop', 'CenterCrop', 'ResizeEdge', 'Resize')]
    found += [step for other in datasets(cfg, LOADERS[-1:]) for step in dicts_in(other.get('pipeline') or ())]
    side = next((step[key] for key in ('crop_size', 'scale') for step in found if step.get(key)), 224)
    crop = dict(type='RandomResizedCrop', scale=side, backend='pillow', interpolation='bicubic')
    flip = dict(_FLIP, direction='horizontal')
    if strength == 'light':
        return [dict(crop, crop_ratio_range=(0.35, 1.0)), flip,
                dict(type='ColorJitter', brightness=0.2, contrast=0.2, saturation=0.2)], ()
    return [crop, flip,
            dict(type='RandAugment', policies='timm_increasing', num_policies=2, magnitude_level=9, magnitude_std=0.5,
                 total_level=10, hparams=dict(pad_val=list(_MEAN), interpolation='bicubic')),
            dict(type='RandomErasing', erase_prob=0.25, mode='rand', min_area_ratio=0.02, max_area_ratio=1 / 3,
                 fill_color=list(_MEAN), fill_std=[57, 57, 58])], ()
