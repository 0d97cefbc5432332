"""Suggest what a detector needs for the number and the shapes of its objects."""
from ..config.check.keys import value_at as at
from ..text import counted
from .anchors import fit_anchors
from .geometry import anchors_of, are_poor, best_ious, objects_kept, rounded
from .writing import Change

#: With more samples per image, time grows but accuracy hardly does.
_MOST_SAMPLES = 512


def change_detector(cfg, objects, boxes) -> list:
    """Return the changes of anchors, of limits on the number of objects and of filters.

    Args:
        cfg: The config.
        objects: `xcit_dense.fit.objects.Objects`.
        boxes: Widths and heights (n, 2) in pixels of the resized images.
    """
    return [*_anchors(cfg, boxes), *_numbers(cfg, objects), *_filter(cfg, objects)]


def _anchors(cfg, boxes):
    anchors = anchors_of(cfg)
    if anchors is None or not are_poor(best_ious(boxes, anchors.shapes), anchors.least):
        return []
    fitted = fit_anchors(boxes, anchors.generator)
    if fitted is None:
        return []
    before, after = ((best_ious(boxes, shapes) >= anchors.positive).mean()
                     for shapes in (anchors.shapes, fitted.shapes))
    why = f'{after:.0%} of the boxes have an anchor with an IoU of {anchors.positive:g} or more, before {before:.0%}'
    changes = []
    for name, value in fitted.arguments.items():
        changes.append(Change(f'{anchors.key}.{name}', value, why))
        why = ''
    return changes


def _numbers(cfg, objects):
    most, usual = objects.most(100), objects.most(50)
    changes, why = [], f'images have a median of {counted(usual, "objects")}, and up to {most}'
    wanted = {key: rounded((3 if 'rpn' in key else 1.3) * most, 50) for key in objects_kept(cfg.model)}
    changes += [Change(key, wanted[key]) for key, now in objects_kept(cfg.model).items()
                if now < (2 if 'rpn' in key else 1) * most]
    for key in [change.key.replace('max_per_img', 'nms_pre') for change in changes]:
        now, least = at(cfg, key), 2 * wanted[key.replace('nms_pre', 'max_per_img')]
        if isinstance(now, int) and now < least:
            changes.append(Change(key, rounded(least, 100)))
    # at most a half and a quarter of these are objects
    for key, share in (('model.train_cfg.rpn.sampler.num', 3), ('model.train_cfg.rcnn.sampler.num', 1)):
        now, least = at(cfg, key), min(rounded(share * usual, 32), _MOST_SAMPLES)
        if isinstance(now, int) and now < least:
            changes.append(Change(key, least))
    return [Change(key, value, '' if place else why) for place, (key, value, _) in enumerate(changes)]


def _filter(cfg, objects):
    if not objects.too_small:
        return []
    return [Change('train_dataloader.dataset.filter_cfg.min_size', 1,
                   f'otherwise {counted(objects.too_small, "images")} would be too small to be used')]
