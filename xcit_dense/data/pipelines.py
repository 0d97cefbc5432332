"""The steps of a data set's pipeline by their classes, wherever they are in it: what the pipeline reads, and how."""
from mmcv.transforms import LoadAnnotations, LoadImageFromFile

from .channels import ARRAY_SUFFIXES, LoadImageChannels
from .datasets import LOADERS, argument_of, dicts_in
from .evaluators import evaluators
from .files import IGNORED
from .folders import IMAGE_SUFFIXES

_FRAMEWORKS = ('mmcv', 'mmengine', 'mmdet', 'mmseg', 'mmpretrain')


def loads_masks(dataset) -> bool:
    """Whether a step of a data set's pipeline reads masks."""
    return any(argument_of(kind, step, 'with_mask', False) for kind, step in dataset.steps)


def turns_images(dataset) -> bool:
    """Whether the pipeline of a data set rotates images as their EXIF orientation says."""
    kind, step = image_loader(dataset)
    if not _is(kind, LoadImageFromFile):
        return True
    colours = argument_of(kind, step, 'color_type', 'color')
    return (colours != 'unchanged' and 'ignore_orientation' not in colours
            and argument_of(kind, step, 'imdecode_backend', 'cv2') not in ('turbojpeg', 'tifffile'))


def image_suffixes(dataset) -> tuple:
    """Return the suffixes of the image files that a data set may read."""
    return (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES) if _is(image_loader(dataset)[0], LoadImageChannels) else IMAGE_SUFFIXES


def ignored_labels(cfg, loader) -> tuple:
    """Return the labels that all heads (in training) or all metrics ignore, as they come out of the pipeline."""
    if loader == LOADERS[0]:
        heads = [(cfg.get('model') or {}).get(name) or () for name in ('decode_head', 'auxiliary_head')]
        parts = [head for head in dicts_in(heads) if 'num_classes' in head]
    else:
        parts = [part for _, part in evaluators(cfg, [loader])]
    labels = {part.get('ignore_index', IGNORED) for part in parts}
    return tuple(labels) if len(labels) == 1 else ()


def image_loader(dataset) -> tuple:
    """Return class, None if unknown, and config of the step that reads images: that of the frameworks, or the first."""
    steps = dataset.steps
    return next((pair for pair in steps if _is(pair[0], LoadImageFromFile)), steps[0] if steps else (None, {}))


def is_known_loader(kind, step) -> bool:
    """Whether it is known what an `image_loader` reads: it is of the frameworks or of this package, or unknown."""
    is_plain = (getattr(kind, 'transform', None) is LoadImageFromFile.transform
                and step.get('imdecode_backend', 'cv2') in ('cv2', 'pillow', 'turbojpeg'))
    is_known = kind in (None, LoadImageChannels) or kind.__module__.partition('.')[0] in _FRAMEWORKS and (
        is_plain or 'Load' not in kind.__name__)  # some of theirs read other formats
    return is_known or _loads_annotations(kind)


def map_loader(dataset) -> tuple:
    """Return class, None if unknown, and config of the step that reads label maps; None and {} if there is no step."""
    return next(((kind, step) for kind, step in dataset.steps if _is(kind, LoadAnnotations)
                 or 'annot' in getattr(kind, '__name__', '').lower()), (None, {}))


def loads_like_training(dataset, trained) -> list:
    """Return the steps of a pipeline that loads annotations as the training does, right after the image."""
    steps, image = list(dataset['pipeline']), image_loader(dataset)[1]
    own = [step for kind, step in dataset.steps if _loads_annotations(kind)]
    if any(step not in steps for step in (image, *own)):
        return steps  # a user's own structure
    loads = [step for kind, step in trained.steps if _loads_annotations(kind)]
    rest = [step for step in steps if step not in own]
    place = rest.index(image) + 1
    return [*rest[:place], *(loads or own), *rest[place:]]


def _loads_annotations(kind):
    name = getattr(kind, '__name__', '')
    return name != 'LoadEmptyAnnotations' and (
        _is(kind, LoadAnnotations) or name.startswith('Load') and 'annot' in name.lower())


def _is(kind, base):
    return isinstance(kind, type) and issubclass(kind, base)
