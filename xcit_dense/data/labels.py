"""The numbers of classes in label maps: which label is which class, and which stand for none."""
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log

from ..text import counted, listed
from .datasets import LOADERS, datasets, dicts_in, setting_of
from .evaluators import evaluators
from .files import IGNORED

#: Names that data sets give to pixels which belong to no class.
_VOID = {'void', 'unlabeled', 'unlabelled', 'unlabel', 'ignore', 'ignored', 'unknown', 'undefined', 'dontcare',
         'donotcare', 'unannotated', 'noclass', 'backgroundunknown', 'outofroi'}


def first_label(dataset) -> int:
    """Return the label of the first class in the files of a data set: 1 with ``reduce_zero_label``."""
    return 1 if setting_of(dataset, 'reduce_zero_label', False) else 0


def own_ignored(dataset) -> set:
    """Return the labels in the files that a data set makes 255 as it loads them, by its ``ignore_labels``."""
    return set(setting_of(dataset, 'ignore_labels', ()))


def labels_of_classes(first: int, ignored, count: int) -> list:
    """Return the labels in the files of so many classes: from the first on, without the ignored ones."""
    labels = [label for label in range(first, first + count + len(ignored)) if label not in ignored]
    return labels[:count]


def without_ignored(names, first: int, ignored) -> tuple:
    """Return those of some names, of the labels from the first on, that name a class."""
    return tuple(name for label, name in enumerate(names, first) if label not in ignored)


def label_map(first: int, ignored, count: int):
    """Return mmseg's ``label_map``: the class of each label that is not its number already, 255 for an ignored one.

    Args:
        first: As `first_label` says.
        ignored: Labels in the files.
        count: The number of classes.

    Returns:
        A dict, whose keys are labels minus ``first``; None where there is nothing to change.
    """
    if not ignored:
        return None
    labels = labels_of_classes(first, ignored, count)
    return {**{label - first: IGNORED for label in sorted(ignored) if first <= label != IGNORED},
            **{label - first: place for place, label in enumerate(labels) if label - first != place}} or None


def labels_in_files(first: int, changed, count: int) -> tuple:
    """Return the labels of so many classes by a ``label_map``, as checkpoints keep it; it is None where none was."""
    # JSON makes texts of numbers
    old = {int(new): int(label) for label, new in (changed or {}).items() if int(new) != IGNORED}
    return tuple(first + old.get(place, place) for place in range(count))


def without_class(totals) -> str:
    """Say how often labels without a class are there, and what helps.

    Args:
        totals: Images and pixels by the label.
    """
    words = [f'{label} ({counted(pixels, "pixels")} on {counted(images, "images")})'
             for label, (images, pixels) in totals.items()]
    options = ' '.join(map(str, totals))
    return (f'Without a class: {listed(words)}. Where they stand for nothing: --ignore-label {options}; where they are '
            'classes, their names are missing in classes.txt, one a line from the first label on')


def void_names(names) -> list:
    """Return those of some names that say that a pixel has no class, with their places: pairs of place and name."""
    return [(place, name) for place, name in enumerate(names)
            if ''.join(filter(str.isalnum, str(name).lower())) in _VOID]


def names_file_of(dataset) -> str:
    """Return the file with the names of the classes of label maps, below the data root or absolute."""
    return dataset.get('classes_file') or 'classes.txt'


def names_path_of(dataset) -> Path:
    """Return the path of `names_file_of`."""
    return Path(Path(dataset.get('data_root') or '').expanduser(), names_file_of(dataset)).absolute()


def leave_out_255(cfg: Config):
    """Make heads, padding, pipelines and metrics leave out the label 255, where the config has another number.

    It is what ``ignore_labels`` of a data set become.
    """
    heads = [node for name in ('decode_head', 'auxiliary_head') for node in dicts_in(_model(cfg).get(name) or ())]
    nodes = [(node, 'ignore_index') for node in heads]
    nodes += [(node, 'seg_pad_val') for node in dicts_in([_model(cfg).get('data_preprocessor'),
                                                          cfg.get('data_preprocessor')])]
    nodes += [(step, key) for dataset in datasets(cfg, LOADERS) for step in dicts_in(dataset.get('pipeline') or ())
              for key in ('ignore_index', 'seg_pad_val')]
    nodes += [(metric, 'ignore_index') for _, metric in evaluators(cfg)]
    for node, key in nodes:
        if node.get(key) not in (None, IGNORED):  # a loss of single bits has None
            print_log(f'{key} = {IGNORED} in the place of {node[key]} ({node.get("type", "")}): that is what ignored '
                      'labels are after loading', logger='current')
            node[key] = IGNORED


def pad_as_ignored(cfg: Config):
    """Pad label maps with the label that all heads leave out, where that is another than 255 and padding is 255.

    No class has the label 255, and the loss would stop at the first image that is smaller than a batch.
    """
    heads = [node for name in ('decode_head', 'auxiliary_head') for node in dicts_in(_model(cfg).get(name) or ())
             if 'num_classes' in node]
    labels = {head.get('ignore_index', IGNORED) for head in heads}
    if len(labels) != 1 or not isinstance(label := labels.pop(), int) or label == IGNORED:
        return
    for node in dicts_in([_model(cfg).get('data_preprocessor'), cfg.get('data_preprocessor')]):
        if node.get('seg_pad_val', 0) == IGNORED:
            node['seg_pad_val'] = label
            print_log(f'seg_pad_val = {label} in the place of {IGNORED}: it is what the heads leave out '
                      '(ignore_index)', logger='current')


def _model(cfg):
    return cfg.get('model') or {}
