"""How a detector fits its objects: their sizes, anchors, limits on their number, rare classes."""
import numpy as np

from ..._utils.files import folder_of
from ..._utils.text import counted, type_name
from ...data.datasets import LOADERS, datasets, dicts_in
from ..check.keys import concerns
from ..check.keys import value_at as at
from ..length import process_count
from ..own import ACCUMULATED
from . import geometry

#: The size in tokens below which an object is hard to see, and that which the median object gets.
SMALL, _OBJECT = 0.5, 1.
_HUNDRED = 100
#: The objects per step that the learning rates of the small configs are for: eight images of the demo. With more, the
#: rate rises with their square root, up to this factor.
_OBJECTS, _FASTER = 32, 1.5
#: Sizes of the anchors of the finest level, in strides; and how many sizes there are per level.
_SCALES, _PER_OCTAVE = (1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12, 16), (1, 2, 3)
_USUAL = (0.5, 1.0, 2.0)
#: Heads without anchors that learn a box only if it has a point, and what helps them where larger images do not.
_POINTS = 'FCOSHead', 'NASFCOSHead', 'CondInstBboxHead', 'BoxInstBboxHead'
_POINT = '; use a finer level (start_level of the neck, strides of the head)'
#: The name under which repeated images of rare classes are recorded.
REPEATS = 'oversample_thr'
#: The gain in mean IoU that one more anchor per position must bring.
_PRICE = 0.015
#: Boxes that are compared at most.
_SAMPLE = 2000
#: Samples per image of the two stages: with more, time grows but accuracy hardly does.
_SAMPLES = {'model.train_cfg.rpn.sampler.num': 512, 'model.train_cfg.rcnn.sampler.num': 128}


def look_at_objects(cfg, objects, facts, warnings):
    """Add facts and warnings about the objects to those of `look`."""
    step, patch = geometry.resize_of(cfg), geometry.patch_of(cfg)
    if step is not None:
        boxes = objects.resized(step)
        sides = np.sqrt(boxes.prod(1))
        (low, median, high), (what, least) = np.percentile(sides, (10, 50, 90)), objects.ranked(sides)[0]
        tokens = f', {median / patch:.2g} tokens' if patch else ''
        tokens += f', that{what} {least:.3g}' if least < median else ''
        facts['objects'] = (f'median {median:.3g} pixels after resizing{tokens} (80% have {low:.3g} to {high:.3g}); '
                            f'median {objects.most(50)} per image, {objects.most(100)} at most')
        if patch and least < SMALL * patch:
            warnings.append(f'the median object{what} has {least:.2g} pixels after resizing, {least / patch:.2g} '
                            f'tokens of {patch} pixels: '
                            + geometry.larger(step, objects, SMALL * patch / least, geometry.FINER * (patch > 8)))
        _look_at_points(cfg, step, objects, boxes, warnings)
        _look_at_anchors(geometry.anchors_of(cfg), objects, boxes, facts, warnings)
    most, queries, most_queries = objects.most_beside, _queries_of(cfg.model), _most_queries(cfg, objects)
    found = min(queries.values(), default=float('inf')) * len(objects.classes)
    for key, kept in _objects_kept(cfg.model).items():
        # one object has several proposals
        need, what = (2 * most, 'proposals') if 'rpn' in key else (most, 'detections')
        few, wanted = {key: kept, **queries}, min(geometry.rounded(1.5 * need, 50), most_queries)
        if min(few.values()) < need:
            options = ' '.join(f'{name}={wanted}' for name, now in few.items() if now < wanted)
            key = min(few, key=few.get)
            share = '99% of the images' if most == objects.most(99) else '90% of the images with a class'
            warnings.append(f'{share} have up to {counted(most, "objects")}, which need {need} {what}, but '
                            f'{key} = {few[key]}: use ' + ' or '.join(
                                [f'--cfg-options {options}'] * bool(options) + [
                                    f'larger images: the smallest has tokens for {wanted} queries'] * (wanted < need)))
        elif kept > found:
            warnings.append(f'{key} = {kept}, but the queries find at most {found} objects (one for each query and '
                            f'class), and mmdet fails on that: use --cfg-options {key}={found}')
    for key, now in queries.items():
        if now > 2 * most_queries:
            warnings.append(f'{key} = {now}, but the smallest image has only {2 * most_queries} tokens in its largest '
                            f'map, of which they are chosen: use larger images or --cfg-options {key}={most_queries}')
    if most > _HUNDRED and any(type_name(part.get('type')) == 'CocoMetric' and 'metric' in part
                               for part in dicts_in(cfg.get('val_evaluator') or {})):
        warnings.append(f'images have up to {most} objects, but COCO\'s mAP counts only the {_HUNDRED} best of an '
                        'image, so it cannot reach 1; mAP_50 and the others count 1000')
    if objects.too_small:
        key = datasets(cfg, LOADERS[:1])[0].key
        warnings.append(f'{counted(objects.too_small, "images")} with a side below the min_size of the filter_cfg '
                        f'{"is" if objects.too_small == 1 else "are"} not used: use --cfg-options '
                        f'{key}.filter_cfg.min_size=1')


def _objects_kept(model) -> dict:
    """Return the limits on the objects, or the proposals, of an image, by their keys in the config."""
    keys = [f'{place}.{name}' for place in ('test_cfg.rcnn', 'test_cfg', 'test_cfg.rpn', 'train_cfg.rpn_proposal')
            for name in ('max_per_img', 'max_per_image')]
    return {f'model.{key}': most for key in keys if isinstance(most := at(model, key), int)}


def _queries_of(model) -> dict:
    """Return the number of queries, each of which finds one object at most, by its key; empty without queries."""
    return {f'model.{key}': number for key in ('num_queries', 'panoptic_head.num_queries', 'rpn_head.num_proposals')
            if isinstance(number := at(model, key), int)}


def _most_queries(cfg, objects):
    """Return how many queries a detector can choose from the tokens of the smallest image, of which it takes half at
    most; infinity where it chooses none."""
    step, strides = geometry.resize_of(cfg), at(cfg, 'model.backbone.out_strides') or [geometry.patch_of(cfg) or 16]
    if not cfg.model.get('as_two_stage') or step is None:
        return float('inf')
    sizes = objects.images[:, :2] * geometry.zooms(step, objects.images[:, :2])
    return int(sizes.prod(1).min() / min(strides)**2 / 2)


def _look_at_points(cfg, step, objects, boxes, warnings):
    """Warn of classes that a head without anchors does not learn: it needs a point of its finest level in a box."""
    strides = at(cfg, 'model.bbox_head.strides')
    if not strides or type_name(at(cfg, 'model.bbox_head.type')) not in _POINTS:
        return
    stride = np.min(strides)
    has_one = (boxes / stride).clip(max=1).prod(1)  # how likely it is
    words, share = objects.ranked(has_one, np.mean)[0]
    if 1 - share > geometry.LOST:
        side = np.quantile(boxes[objects.of_classes[words]].min(1), geometry.LOST)
        warnings.append(f'{1 - share:.0%} of the boxes{words} have no point of model.bbox_head, whose finest stride '
                        f'is {stride} pixels: {geometry.larger(step, objects, stride / side, _POINT)}')


def _look_at_anchors(anchors, objects, boxes, facts, warnings):
    if anchors is None:
        return
    best = geometry.best_ious(boxes, anchors.shapes)
    fitting, least = (best >= anchors.positive).mean(), max(anchors.least, geometry.NO_ANCHOR)
    facts['anchors'] = (f'{fitting:.0%} of the boxes have an anchor with an IoU of {anchors.positive:g} or more '
                        f'(centred); median of the best IoU {np.median(best):.2f}')
    if poor := geometry.poor_classes(best, anchors.least, objects):
        which = objects.of_classes[words := poor[0]]
        sides, (low, high) = np.sqrt(anchors.shapes.prod(1)), np.percentile(np.sqrt(boxes[which].prod(1)), (10, 90))
        lost, median = (best[which] < least).mean(), np.median(best[which])
        share, iou = (lost, least) if lost > geometry.LOST else (0.5, median)
        warnings.append(f'the anchors do not fit the boxes{words}: {share:.0%} of them have no anchor with an IoU of '
                        f'{iou:.2g}. Anchors measure {sides.min():.3g} to {sides.max():.3g} '
                        f'pixels, 80% of these boxes {low:.3g} to {high:.3g}: change the scales or ratios of '
                        f'{anchors.key}; how fitting chooses them: {folder_of("docs")}/fitting.md')


def factor_for_objects(cfg, step, objects, least: int):
    """Return the factor by which images should be enlarged for their objects, and the reason."""
    patch = geometry.patch_of(cfg) or 16
    words, median = objects.ranked(np.sqrt(objects.resized(step).prod(1)))[0]
    factor = geometry.bounded(cfg, step, objects, least, _OBJECT * patch / median)
    return factor, (f'the median object{words} grows from {median:.2g} to about {median * factor:.2g} pixels; a token '
                    f'has {patch}')


def fit_detector(cfg, objects, given=(), keeps_rate: bool = False) -> dict:
    """Change anchors, limits on the number of objects, filters and, unless it ``keeps_rate``, the learning rate.

    The objects are `xcit_dense.config.fit.geometry.Objects`. If one of the dotted keys that the user set is of the
    anchors, all of them stay. Returns the reasons by key.
    """
    whys = {}
    for values, why in (part(cfg, objects, given) for part in (_anchors, _numbers, _filter)):
        cfg.merge_from_dict(values)
        whys.update(dict.fromkeys(values, why))
    size = (cfg.train_dataloader.get('batch_size') or 1) * process_count() * (at(cfg, ACCUMULATED) or 1)
    return whys if keeps_rate else whys | _fit_rate(cfg, size * objects.total / objects.count)


def _anchors(cfg, objects, given):
    """Return anchors that fit, as values by key, and the reason."""
    anchors = geometry.anchors_of(cfg)
    if anchors is None or concerns(anchors.key, given):
        return {}, ''
    best = geometry.best_ious(boxes := objects.resized(geometry.resize_of(cfg) or {}), anchors.shapes)
    poor, classes = geometry.poor_classes(best, anchors.least, objects), objects.of_classes
    if not poor:
        return {}, ''
    # all classes count alike, but the poor ones at least a third together
    repeats = max((len(classes) - len(poor)) // (2 * len(poor)), 1)
    parts = [boxes[which] for words, which in classes.items() for _ in range(repeats if words in poor else 1)]
    most = max(map(len, parts))
    fitted = fit_anchors(np.concatenate([part[geometry.evenly(len(part), most)] for part in parts]), anchors.generator)
    if fitted is None:
        return {}, ''
    (arguments, shapes), own = fitted, boxes[classes[poor[0]]]
    before, after = (np.median(geometry.best_ious(own, each)) for each in (anchors.shapes, shapes))
    return {f'{anchors.key}.{name}': value for name, value in arguments.items()}, (
        f'with the boxes{poor[0]}, the best have a median IoU of {after:.2f}, before {before:.2f}')


def _numbers(cfg, objects, given):
    """Return limits on the number of objects, as values by key, and the reason."""
    most, usual = objects.most(100), objects.most(50)
    limits, queries = _objects_kept(cfg.model), _queries_of(cfg.model)
    wanted = {key: geometry.rounded((3 if 'rpn' in key else 1.3) * most, 50) for key in (*limits, *queries)}
    most_queries = _most_queries(cfg, objects)
    wanted |= {key: most_queries if now > 2 * most_queries else max(min(wanted[key], most_queries), now)
               for key, now in queries.items()}
    # weights to start from have their number of queries
    values = {} if cfg.get('init_from') or cfg.get('load_from') else {
        key: wanted[key] for key, now in queries.items()
        if (now < min(most, wanted[key]) or now > wanted[key]) and not concerns(key, given)}
    found = min({**queries, **values}.values(), default=float('inf'))
    for key, now in limits.items():
        wanted[key] = min(wanted[key], found)
        if now < min((2 if 'rpn' in key else 1) * most, found) or now > found * len(objects.classes):
            values[key] = wanted[key]
    for key in [*values]:
        before = key.replace('max_per_img', 'nms_pre')
        now = at(cfg, before)
        if isinstance(now, int) and now < wanted[key]:  # of each level, so more are rarely kept but cost time
            values[before] = wanted[key]
    # at most a half and a quarter of these are objects, of which each has several
    for key, most_samples in _SAMPLES.items():
        now, least = at(cfg, key), min(geometry.rounded(3 * usual, 32), most_samples)
        if isinstance(now, int) and now < least:
            values[key] = least
    return values, f'images have a median of {counted(usual, "objects")}, and up to {most}'


def _filter(cfg, objects, given):
    key = f'{datasets(cfg, LOADERS[:1])[0].key}.filter_cfg.min_size'
    return ({key: 1} if objects.too_small and not concerns(key, given) else {},
            f'otherwise {counted(objects.too_small, "images")} would be too small to be used')


def fit_anchors(boxes, generator):
    """Return the arguments for the generator of the anchors that fit boxes best, and the shapes of these anchors.

    The boxes are widths and heights (n, 2) in pixels of the resized images. None if the anchors of the given generator
    are as good, or if it is no ``AnchorGenerator`` with ``scales`` or ``octave_base_scale``.
    """
    strides = [stride if isinstance(stride, (int, float)) else stride[0] for stride in generator.get('strides') or ()]
    keys = {'strides', 'ratios', 'scales', 'octave_base_scale', 'scales_per_octave', 'type'}
    if not strides or set(generator) - keys or str(generator.get('type')).rpartition('.')[2] != 'AnchorGenerator':
        return None
    boxes = np.asarray(boxes)[geometry.evenly(len(boxes), min(len(boxes), _SAMPLE))]
    octave = generator.get('octave_base_scale')
    now = [octave * 2 ** (i / generator['scales_per_octave']) for i in range(generator['scales_per_octave'])] \
        if octave else list(generator.get('scales') or ())
    if not now:
        return None
    low, middle, high = (round(float(value), 2) for value in np.percentile(boxes[:, 1] / boxes[:, 0], (10, 50, 90)))
    # ratios of the usual box and of higher and wider ones, unless boxes hardly differ
    own = (middle, ) if high / low < 1.5 else (*dict.fromkeys((low, middle, high)), )
    counts = (generator['scales_per_octave'], ) if octave else _PER_OCTAVE
    best = None
    for scale in _SCALES:
        for count in counts:
            for ratios in dict.fromkeys((own, (1.0, ), _USUAL)):
                scales = [round(scale * 2 ** (i / count), 2) for i in range(count)]
                score, shapes = _judge(boxes, scales, ratios, strides)
                if best is None or score > best[0]:
                    best = score, scales, ratios, shapes
    before, _ = _judge(boxes, now, generator['ratios'], strides)
    if best[0] < before + 0.03:
        return None
    scales = dict(octave_base_scale=best[1][0]) if octave else dict(scales=best[1])
    return dict(scales, ratios=list(best[2])), best[3]


def _judge(boxes, scales, ratios, strides):
    """Return the score of anchors, and their shapes (n, 2).

    The centre of a box is a quarter of the stride away from that of the next anchor, in the mean of each axis: a large
    box has anchors that fit on a coarse map only if these are much larger than its stride.
    """
    sides = np.multiply.outer(strides, scales).ravel()
    shapes = np.concatenate([np.stack([sides / ratio ** 0.5, sides * ratio ** 0.5], 1) for ratio in ratios])
    apart = np.tile(np.repeat(strides, len(scales)), len(ratios))[:, None] / 4
    return geometry.best_ious(boxes, shapes, apart).mean() - _PRICE * len(scales) * len(ratios), shapes


def _fit_rate(cfg, objects):
    """Change the learning rate for a number of objects per step, if weights start random; return the reason by key."""
    optimizer = cfg.optim_wrapper.get('optimizer', {})
    factor = min((objects / _OBJECTS) ** 0.5, _FASTER)
    if not optimizer.get('lr') or factor < 1.2 or cfg.get('init_from') or cfg.get('load_from') or any(
            'Pretrained' in str(part.get('init_cfg')) for part in dicts_in(cfg.model)):
        return {}
    optimizer['lr'] = float(f'{optimizer["lr"] * factor:.2g}')
    return {'optim_wrapper.optimizer.lr': f'a step has {objects:.0f} objects, and the original rate is for about '
            f'{_OBJECTS}'}


def share_of_rare(cfg, objects):
    """Return what is added to a config for rare classes, if there are frequent ones too: `REPEATS`, the share of the
    images below which a class is rare, and the reason; or None."""
    shares = {name: images / objects.count for name, (_, images) in objects.classes.items() if images}
    dataset, *others = datasets(cfg, LOADERS[:1])
    rare = {name: share for name, share in shares.items()
            if share < max(shares.values()) / 10 and (share < 0.02 or objects.classes[name][1] < geometry.RARE)}
    if not rare or others or dataset.key != 'train_dataloader.dataset':
        return None
    return REPEATS, float(f'{min(8.99 * min(rare.values()), 0.3):.4g}'), (  # 9, rounded up, gives four times
        f'images of rare classes, such as {min(rare, key=rare.get)!r}, are used up to three times an epoch')


def repeat_rare(cfg, share: float):
    """Let a training repeat the images of classes that fewer than a share of the images have."""
    dataset = cfg.train_dataloader.dataset
    if 'oversample_thr' not in dataset:
        cfg.train_dataloader.dataset = dict(type='ClassBalancedDataset', dataset=dataset, oversample_thr=share)
