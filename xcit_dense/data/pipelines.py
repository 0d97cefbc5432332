"""The steps of a data set's pipeline by their classes, wherever they are in it: what the pipeline reads, and how."""
from typing import NamedTuple

from mmcv.transforms import LoadAnnotations, LoadImageFromFile

from .channels import ARRAY_SUFFIXES, LoadImageChannels
from .datasets import LOADERS, argument_of, dicts_in
from .evaluators import evaluators
from .files import IGNORED
from .folders import IMAGE_SUFFIXES

_FRAMEWORKS = ('mmcv', 'mmengine', 'mmdet', 'mmseg', 'mmpretrain')
#: Arguments of the step that loads annotations: in which form.
_FORMS = ('poly2mask', 'box_type')
_ORIENTED = ('turbojpeg', 'tifffile')


def loads_masks(dataset) -> bool:
    """Whether a step of a data set's pipeline reads masks."""
    return any(argument_of(kind, step, 'with_mask', False) for kind, step in dataset.steps)


def turns_images(dataset) -> bool:
    """Whether the pipeline of a data set rotates images as their EXIF orientation says."""
    kind, step = _image_step(dataset)
    if not _is(kind, LoadImageFromFile):
        return True
    colours = argument_of(kind, step, 'color_type', 'color')
    return (colours != 'unchanged' and 'ignore_orientation' not in colours
            and argument_of(kind, step, 'imdecode_backend', 'cv2') not in _ORIENTED)


def image_suffixes(dataset) -> tuple:
    """Return the suffixes of the image files that a data set may read."""
    return (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES) if _is(_image_step(dataset)[0], LoadImageChannels) else IMAGE_SUFFIXES


def resizes(dataset) -> bool:
    """Whether a step of a pipeline resizes images and label maps to a given size."""
    return any('Resize' in getattr(kind, '__name__', '') for kind, _ in dataset.steps)


def judges_masks(cfg, loader):
    """Return whether a metric reads the masks of a loader's data itself, None if that is unknown."""
    parts = [part for _, part in evaluators(cfg, [loader])]
    names = [getattr(part.get('type'), '__name__', str(part.get('type'))) for part in parts]
    if not all(name.endswith('CocoMetric') for name in names) or not names:
        return None
    return any('segm' in part.get('metric', 'bbox') for part in parts)


def ignored_labels(cfg, loader) -> tuple:
    """Return the labels that all heads (in training) or all metrics ignore, as they come out of the pipeline."""
    parts = _label_heads(cfg) if loader == LOADERS[0] else [part for _, part in evaluators(cfg, [loader])]
    labels = {part.get('ignore_index', IGNORED) for part in parts}
    return tuple(labels) if len(labels) == 1 else ()


def stops_at_255(cfg) -> bool:
    """Whether training fails at a pixel that is 255 after loading: the loss of a head has no class for it, and ignores
    only another label."""
    return any(_is_softmax(loss) for head in _label_heads(cfg) if head.get('ignore_index', IGNORED) != IGNORED
               for loss in dicts_in(head.get('loss_decode') or dict(type='CrossEntropyLoss')))


def _is_softmax(loss):
    return (str(loss.get('type')).rpartition('.')[2] == 'CrossEntropyLoss' and not loss.get('use_sigmoid')
            and not loss.get('use_mask'))


def _label_heads(cfg):
    model = cfg.get('model') or {}
    return [head for name in ('decode_head', 'auxiliary_head') for head in dicts_in(model.get(name) or ())
            if 'num_classes' in head]


class Loader(NamedTuple):
    """The step of a pipeline that reads a kind of file.

    Args:
        kind: Its class, or None if there is no step or its class is unknown.
        step: Its config.
        is_standard: Whether what it reads is known: it is a class of the frameworks or of this package, or unknown.
    """
    kind: type | None
    step: dict
    is_standard: bool


def image_loader(dataset) -> Loader:
    """Return the step that reads the images of a data set: that of the frameworks, otherwise the first step."""
    kind, step = _image_step(dataset)
    is_plain = (getattr(kind, 'transform', None) is LoadImageFromFile.transform
                and step.get('imdecode_backend', 'cv2') in ('cv2', 'pillow', 'turbojpeg'))
    is_known = kind in (None, LoadImageChannels) or kind.__module__.partition('.')[0] in _FRAMEWORKS and (
        is_plain or 'Load' not in kind.__name__)  # some of theirs read other formats
    return Loader(kind, step, is_known or _loads_annotations(kind))


def map_loader(dataset) -> Loader:
    """Return the step that reads the label maps of a data set."""
    kind, step = next(((kind, step) for kind, step in dataset.steps if _is(kind, LoadAnnotations)
                       or 'annot' in getattr(kind, '__name__', '').lower()), (None, {}))
    return Loader(kind, step, kind in (None, LoadAnnotations, dataset.class_of('TRANSFORMS', 'LoadAnnotations')))


def loads_like_training(dataset, trained) -> list:
    """Return the steps of a pipeline such that annotations are loaded right after the image, as training needs them.

    Annotations that the pipeline does not load, such as masks, are loaded as by the pipelines of the training.

    Args:
        dataset: The data set of the pipeline, for validation or test.
        trained: The data sets of the training.
    """
    steps = list(dataset['pipeline'])
    wanted = [(kind, step) for other in trained for kind, step in other.steps if _loads_annotations(kind)]
    own = [step for step in steps if _loads_annotations(dataset.class_of('TRANSFORMS', step['type']))]
    is_nested = any(_loads_annotations(kind) and step not in own for kind, step in dataset.steps)
    image = _image_step(dataset)[1]
    if is_nested or image not in steps:
        return steps  # a user's own structure
    rest = [step for step in steps if step not in own]
    loads = []
    for step in own or [step for _, step in wanted[:1]]:
        kind = dataset.class_of('TRANSFORMS', step['type'])
        also = next((other for other_kind, other in wanted if other_kind is kind), {})
        loads.append({**step, **{key: also[key] for key in also if key.startswith('with_') or key in _FORMS}})
    place = rest.index(image) + 1
    return [*rest[:place], *loads, *rest[place:]]


def _loads_annotations(kind):
    name = getattr(kind, '__name__', '')
    return name != 'LoadEmptyAnnotations' and (
        _is(kind, LoadAnnotations) or name.startswith('Load') and 'annot' in name.lower())


def _image_step(dataset):
    steps = dataset.steps
    return next((pair for pair in steps if _is(pair[0], LoadImageFromFile)), steps[0] if steps else (None, {}))


def _is(kind, base):
    return isinstance(kind, type) and issubclass(kind, base)
