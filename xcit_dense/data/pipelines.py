"""The steps of a data set's pipeline by their classes, wherever they stand in it; what it reads, and how."""
import inspect

from mmcv.transforms import LoadAnnotations, LoadImageFromFile

from ..files import stamp_of
from ..text import first_line
from .channels import ARRAY_SUFFIXES, LoadImageChannels
from .datasets import IMAGE_SUFFIXES, LOADERS, argument_of, class_of, dicts_in, is_elsewhere
from .evaluators import evaluators
from .files import IGNORED

_ORIENTED = ('turbojpeg', 'tifffile')


def steps_of(dataset) -> list:
    """Return the steps of a pipeline, those inside others too: pairs of a class, None where it is unknown, and config.

    A type may be a name, with its scope or without, or the class itself.
    """
    return [(class_of(dataset, 'TRANSFORMS', node['type']), node) for node in dicts_in(dataset.get('pipeline') or ())
            if node.get('type')]


def loads_masks(dataset) -> bool:
    """Whether a step of a data set's pipeline reads masks."""
    return any(argument_of(kind, step, 'with_mask', False) for kind, step in steps_of(dataset))


def turns_images(dataset) -> bool:
    """Whether the pipeline of a data set reads images turned as their EXIF marks ask."""
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
    """Whether a step of a pipeline brings images and label maps to a size that is given."""
    return any('Resize' in getattr(kind, '__name__', '') for kind, _ in steps_of(dataset))


def judges_masks(cfg, loader):
    """Return whether a metric reads the masks of a loader's data itself, None where that is not known."""
    parts = [part for _, part in evaluators(cfg, [loader])]
    names = [getattr(part.get('type'), '__name__', str(part.get('type'))) for part in parts]
    if not all(name.endswith('CocoMetric') for name in names) or not names:
        return None
    return any('segm' in part.get('metric', 'bbox') for part in parts)


def ignored_labels(cfg, loader) -> tuple:
    """Return the labels that all heads (of a training) or all metrics leave out, as they come out of the pipeline."""
    parts = _label_heads(cfg) if loader == LOADERS[0] else [part for _, part in evaluators(cfg, [loader])]
    labels = {part.get('ignore_index', IGNORED) for part in parts}
    return tuple(labels) if len(labels) == 1 else ()


def stops_at_255(cfg) -> bool:
    """Whether training stops at a pixel that is 255 after loading: the loss of a head has no class for it, and leaves
    out another label alone."""
    return any(_is_softmax(loss) for head in _label_heads(cfg) if head.get('ignore_index', IGNORED) != IGNORED
               for loss in dicts_in(head.get('loss_decode') or dict(type='CrossEntropyLoss')))


def _is_softmax(loss):
    return (str(loss.get('type')).rpartition('.')[2] == 'CrossEntropyLoss' and not loss.get('use_sigmoid')
            and not loss.get('use_mask'))


def _label_heads(cfg):
    model = cfg.get('model') or {}
    return [head for name in ('decode_head', 'auxiliary_head') for head in dicts_in(model.get(name) or ())
            if 'num_classes' in head]


class Loader:
    """The step of a pipeline that reads a kind of file, to be asked where a look at the file leaves a doubt.

    Args:
        kind: Its class, or None where there is none or nothing is known of it.
        step: Its config.
        standard: The classes of the frameworks, of which it is known what they read.
    """

    def __init__(self, kind, step, standard):
        self.kind, self.step = kind, step
        #: Whether it is one of the frameworks.
        self.is_standard = kind is None or kind in standard
        #: Whether it reads each file from its path, and gives an image the size that the file says.
        self.reads_as_known = self.is_standard and not (step.get('ignore_empty') or step.get('backend_args'))
        #: Whether it reads from a disk.
        self.is_local = not is_elsewhere(step)
        self._source = _source_of(kind)
        #: Whether `key` tells when the step becomes another: its code lies in a file.
        self.has_key = self._source is not None
        self._built = None

    def key(self) -> str:
        """Return what findings depend on: the config of the step and the file of its class."""
        return repr([self.step, self._source]) if self.kind is not None else ''

    def ask(self, **record):
        """Load a file.

        Args:
            **record: What the data set hands to its pipeline.

        Returns:
            What the step makes of the record, or None; and what it says against the file or ''. Both are empty where
            there is no step to ask.
        """
        if self.kind is None:
            return None, ''
        try:
            if self._built is None:
                self._built = self.kind(**{key: value for key, value in self.step.items()
                                           if key not in ('type', '_scope_')})
            return self._built(dict(record)), ''
        except Exception as error:  # whatever a loader of the user's own leads to
            return None, first_line(error)


def _source_of(kind):
    try:
        path = inspect.getfile(kind)
        return [kind.__qualname__, path, *stamp_of(path)]
    except (OSError, TypeError, AttributeError):  # no class, or one that was typed in
        return None


def image_loader(dataset) -> Loader:
    """Return the step that reads the images of a data set: that of the frameworks, or else the first of all."""
    return Loader(*_image_step(dataset), (LoadImageFromFile, ))


def map_loader(dataset) -> Loader:
    """Return the step that reads the label maps of a data set."""
    found = next(((kind, step) for kind, step in steps_of(dataset) if _is(kind, LoadAnnotations)
                  or kind is not None and 'annot' in kind.__name__.lower()), (None, {}))
    return Loader(*found, (LoadAnnotations, class_of(dataset, 'TRANSFORMS', 'LoadAnnotations')))


def _image_step(dataset):
    steps = steps_of(dataset)
    return next((pair for pair in steps if _is(pair[0], LoadImageFromFile)), steps[0] if steps else (None, {}))


def _is(kind, base):
    return isinstance(kind, type) and issubclass(kind, base)
