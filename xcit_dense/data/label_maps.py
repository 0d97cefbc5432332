"""The label maps of a data set: its files, which label is which class, and which labels are ignored."""
from pathlib import Path

from mmcv.transforms import LoadAnnotations
from mmengine.config import Config
from mmengine.logging import print_log

from .._utils.processes import is_first_of_any_launcher
from .._utils.text import counted, listed, type_name
from .datasets import LOADERS, DataSet, datasets, dicts_in
from .files import IGNORED, read_files, read_map
from .folders import IMAGE_SUFFIXES, files_below, label_map_of, names_in_list
from .pipelines import ignored_labels, map_loader

#: The data set of plain folders, which mmsegmentation imports by this name.
OF_FOLDERS = 'xcit_dense.data.image_folders.ImageFolderDataset'
#: Names that data sets use for pixels without a class.
_VOID = {'void', 'unlabeled', 'unlabelled', 'unlabel', 'ignore', 'ignored', 'unknown', 'undefined', 'dontcare',
         'donotcare', 'unannotated', 'noclass', 'backgroundunknown', 'outofroi'}


def first_label(dataset) -> int:
    """Return the label of the first class in the files of a data set: 1 with ``reduce_zero_label``."""
    return 1 if dataset.setting('reduce_zero_label', False) else 0


def own_ignored(dataset) -> set:
    """Return the labels in the files that a data set changes to 255 on loading, because of its ``ignore_labels``."""
    return set(dataset.setting('ignore_labels', ()))


def labels_of_classes(first: int, ignored, count: int) -> list:
    """Return the labels in the files for ``count`` classes: from the first on, without the ignored ones."""
    return [label for label in range(first, first + count + len(ignored)) if label not in ignored][:count]


def without_ignored(names, first: int, ignored) -> tuple:
    """Return the names of the labels from the first on, without those of ignored labels."""
    return tuple(name for label, name in enumerate(names, first) if label not in ignored)


def label_map(first: int, ignored, count: int):
    """Return mmseg's ``label_map``: by label minus ``first``, the class if the number changes, or 255 for ignored ones;
    None if nothing changes."""
    labels = labels_of_classes(first, ignored, count)
    return {**{label - first: IGNORED for label in sorted(ignored) if first <= label != IGNORED},
            **{label - first: place for place, label in enumerate(labels) if label - first != place}} or None


def labels_in_files(first: int, changed, count: int) -> tuple:
    """Return the labels of ``count`` classes according to a ``label_map`` from a checkpoint, which may be None."""
    # JSON turns the keys into strings
    old = {int(new): int(label) for label, new in (changed or {}).items() if int(new) != IGNORED}
    return tuple(first + old.get(place, place) for place in range(count))


def without_class(totals) -> str:
    """Return a text on how often labels without a class occur (numbers of images and pixels by label), and the fix."""
    words = [f'{label} ({counted(pixels, "pixels")} in {counted(images, "images")})'
             for label, (images, pixels) in totals.items()]
    options = ' '.join(map(str, totals))
    return (f'Without a class: {listed(words)}. To ignore them: --ignore-label {options}. If they are classes, add '
            'their names to classes.txt, one per line from the first label on')


def void_names(names) -> list:
    """Return the names that mean that a pixel has no class, with their indices: pairs of index and name."""
    return [(place, name) for place, name in enumerate(names)
            if ''.join(filter(str.isalnum, str(name).lower())) in _VOID]


def names_path_of(dataset) -> Path:
    """Return the path of the file with the class names of label maps."""
    return dataset.file(dataset.get('classes_file') or 'classes.txt')


def read_own_maps(cfg: Config, anew: bool):
    """Let a config with ``classes_from_data`` read label maps of any classes, of which label 0 is one.

    mmsegmentation's data sets for benchmarks, such as ADE20KDataset, accept only their own classes: plain ones with the
    same suffixes replace them. With ``anew``, the layout will be recognised, and one replaces all parts of a benchmark.
    """
    for loader in LOADERS if cfg.get('classes_from_data') and cfg.get('default_scope') == 'mmseg' else ():
        members = [dataset for dataset in datasets(cfg, [loader]) if dataset.reader == 'BaseSegDataset'
                   and dataset.own_classes and dataset.type.__module__.startswith('mmseg.')]
        if anew and len(members) == len(datasets(cfg, [loader])) > 1:
            cfg[loader]['dataset'], members = members[0].data, members[:1]
        for dataset in members:
            if first_label(dataset) and loader == LOADERS[0] and is_first_of_any_launcher():
                print_log(f'label 0 is a class, which {type_name(dataset["type"])} ignores, as the data has its own '
                          'classes; --ignore-label 0 ignores it', logger='current')
            for key, default in dict(img_suffix='.jpg', seg_map_suffix='.png').items():
                dataset[key] = dataset.setting(key, default)
            ending, dot, suffix = dataset['img_suffix'].rpartition('.')
            dataset.update(dict(type=OF_FOLDERS, image_ending=ending) if anew and dot + suffix in IMAGE_SUFFIXES else
                           dict(type='BaseSegDataset'), reduce_zero_label=False)  # arrays are where the config says
            for step in dicts_in(dataset.get('pipeline')):
                step.update(dict.fromkeys({'reduce_zero_label'} & step.keys(), False))


def leave_out_255(cfg: Config):
    """Make heads, padding, pipelines and metrics ignore the label 255, as ignored labels are 255 after loading."""
    for node in dicts_in(list(cfg.values())):
        for key in {'ignore_index', 'seg_pad_val'} & node.keys():
            node[key] = None if node[key] is None else IGNORED  # a binary loss has None


def pad_as_ignored(cfg: Config):
    """Pad label maps with the label that all heads ignore, if that is not 255 and padding is 255.

    No class has the label 255, so the loss would fail at the first image that is smaller than the batch.
    """
    label = next(iter(ignored_labels(cfg, LOADERS[0])), IGNORED)
    # the preprocessor may also be at the top of the config
    for node in dicts_in([part.get('data_preprocessor') for part in (cfg.get('model') or {}, cfg)]):
        if node.get('seg_pad_val', 0) == IGNORED and isinstance(label, int) and label != IGNORED:
            node['seg_pad_val'] = label
            print_log(f'seg_pad_val = {label} instead of {IGNORED}: the heads ignore this label (ignore_index)',
                      logger='current')


class LabelMaps:
    """The label maps of a data set.

    Args:
        ignored: Labels that heads or metrics ignore, as they come out of the pipeline.

    Attributes:
        folder: The folder of the maps.
        suffix: The end of their names.
        ending: The part before the suffix that only the names of images have.
        first: The `first_label`.
        ignored: The labels in the files that mean "no class".
        skipped: Those that are `own_ignored`: they use up no class number, and higher labels move down.
        is_read: Whether a step of the frameworks reads the maps; otherwise nothing is known of the labels in them.
    """

    def __init__(self, dataset, ignored=(), use_cache: bool = True):
        dataset = DataSet.of(dataset)
        self.folder = dataset.folder('seg_map_path')
        self.suffix = dataset.setting('seg_map_suffix', '.png')
        self.first, self.skipped = first_label(dataset), own_ignored(dataset)
        self.ignored = {dataset.setting('ignore_index', IGNORED), IGNORED, *range(self.first), *self.skipped,
                        *(label + self.first for label in ignored if label != IGNORED)}
        kind, _ = map_loader(dataset)
        self.is_read = kind in (LoadAnnotations, dataset.class_of('TRANSFORMS', 'LoadAnnotations')) if kind else (
            not dataset.get('pipeline'))
        self.ending = dataset.get('image_ending') or ''
        self._dataset, self._use_cache = dataset, use_cache

    def read(self, paths) -> list:
        """Return the states of label maps as `read_files` does; the content of each is that of `read_map`."""
        return read_files(paths, read_map, 'maps', self.folder, self._use_cache, 'label maps')

    def labels(self, count: int) -> list:
        """Return the labels in the files for ``count`` classes."""
        return labels_of_classes(self.first, self.skipped, count)

    def in_words(self, count: int) -> str:
        """Return a text on which labels ``count`` classes have, and which are ignored."""
        labels, left_out = self.labels(count), sorted(self.ignored - set(range(self.first)))
        return (f'the labels {labels[0]} to {labels[-1]}' if labels else 'no labels') + (
            f'; {", ".join(map(str, left_out))} {"is" if len(left_out) == 1 else "are"} ignored')

    def paths(self, whole: bool = False) -> list:
        """Return the label maps of the data set: those of its list of images, or all in the folder."""
        folder = self.folder.absolute()
        if whole or not self._dataset.get('ann_file'):
            return [path for path in files_below(folder) if path.name.endswith(self.suffix)]
        images = self._dataset.folder('img_path').absolute()
        # data sets that read one kind of image list names without suffixes
        suffix = '' if self._dataset.reader == 'BaseSegDataset' else None
        return [label_map_of(images / name, images, folder, self.suffix, suffix, self.ending)
                for name in names_in_list(self._dataset.ann_file)]
