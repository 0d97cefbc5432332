"""Points the data sets and metrics of a config to the data in a folder; `KINDS` is the table of what can be found."""
import copy
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from mmengine.config import Config
from mmengine.logging import print_log

from .._utils.processes import is_first_of_any_launcher
from .._utils.text import did_you_mean, listed
from ..data.classes import classes_of_data
from ..data.datasets import LOADERS, datasets, of_same_size
from ..data.evaluators import annotation_files, evaluators
from ..data.folders import IMAGE_SUFFIXES, MAPS, WORDS, part_in
from ..data.label_maps import OF_FOLDERS
from ..data.unlabelled import UnlabelledSource
from ..errors import ConfigError, DataError
from .derived import KeptError, Made
from .detection_formats import find_detection, seen_for_detection
from .segmentation_formats import find_segmentation, ignore, seen_for_segmentation
from .types import PARTS, DataOptions, Layout, Part, below, describe


def find_class_folders(cfg, root: Path, options, made):
    """Recognise a folder with data for classification, one of images for each class, see `Kind`."""
    options.refuse(*(name for name in options.given if not name.endswith('-images')),
                   why='has no effect: the folder of an image is its class')
    parts = {}
    for part, names in WORDS.items():
        if part == 'val':  # without validation data, the test data is used for validation
            names = *names, *WORDS['test']
        found = options.path(part, 'images', root) or next(
            (path for name in names if _folders_in(path := root / name)), None)
        if found and found not in [other.images for other in parts.values()]:
            parts[part] = Part(found, None)
    listed = datasets(cfg, [f'{part}_dataloader' for part in parts])
    # a folder or list that the config itself names takes precedence
    own = {data.prefixes.get('img_path') for data in listed} - {'train', 'val'} if not options.given else ()
    if own or set(parts) < {'train', 'val'} or any(data.get('ann_file') or data.get('split') or not data.prefixes
                                                   for data in listed):
        return None
    return Layout('class folders', root, parts)


def _seen_class_folders(root):
    for name in WORDS['train']:
        folders = _folders_in(root / name)
        # a folder of images next to one of labels is no class
        if len(folders) > 1 and all(folder.name != 'images' and any(
                path.suffix.lower() in IMAGE_SUFFIXES for path in folder.iterdir()) for folder in folders):
            return f'a folder of images for each class in {name}'
    return ''


def _folders_in(folder):
    return [entry for entry in folder.glob('[!.]*') if entry.is_dir()]


def find_unlabelled(cfg, root: Path, options, made):
    """Find the images below a folder, see `Kind`; None if the config lists them itself, or there is no such folder."""
    options.refuse(*(name for name in options.given if name != '--train-images'),
                   why='has no effect: the config trains on images without labels')
    dataset, = datasets(cfg, ['train_dataloader'])
    images = options.path('train', 'images', root) or root / (dataset.prefixes.get('img_path') or '')
    if dataset.get('ann_file') and not options.given or not images.is_dir():
        return None
    source = UnlabelledSource(dict(dataset, data_prefix=dict(img_path=str(images)), ann_file=''))
    if not (count := len(source.images())):
        raise DataError(source.nothing())
    # written into the config, so that nobody has to find out again
    settings = dict(left_out=list(source.left_out))
    return Layout('images without labels', root, dict(train=Part(images, None, settings, count)),
                  notes=[source.describe()] if source.left_out and dataset.get('left_out') is None else [])


class Kind(NamedTuple):
    """Data that is read in one way.

    Attributes:
        find: Recognises a folder: called with the config, the root, the options and a `Made`, it returns a `Layout`, or
            None if nothing is recognised and the config stays as it is.
        images: The key of the images in ``data_prefix``.
        maps: The key of the label maps; None if the annotations are a file.
        seen: Describes such data in a folder, '' if there is none.
        configs: The configs that can read it.
    """
    find: Callable
    images: str = 'img_path'
    maps: str = None
    seen: Callable = lambda root: ''
    configs: str = ''


_SEGMENTATION = Kind(find_segmentation, 'img_path', 'seg_map_path', seen_for_segmentation,
                     'semfpn_xcit_s12_p16_custom')
#: By the class whose way of listing images a data set uses. A new format of annotations goes into
#: `detection_formats` (boxes and masks of objects, as COCO and YOLO there) or `segmentation_formats` (label maps).
KINDS = dict(
    CocoDataset=Kind(find_detection, 'img', None, seen_for_detection,
                     'maskrcnn_xcit_s12_p16_custom (masks) or fasterrcnn_xcit_s12_p16_custom (boxes)'),
    BaseSegDataset=_SEGMENTATION, ImageFolderDataset=_SEGMENTATION,
    CustomDataset=Kind(find_class_folders, seen=_seen_class_folders, configs='xcit_s12_p16_custom'),
    UnlabelledImages=Kind(find_unlabelled))


def place_data(cfg: Config, root, options: DataOptions, folder: Path, keep: bool = False):
    """Point the data sets and metrics of a config to the data in a folder, if it is not where they expect it.

    The data root of the config is ``root`` already. `ConfigError` or `DataError` say that an option does not work with
    it, or that the data is not recognised, is for other models, or can be read in several ways.

    Args:
        folder: Where converted annotations are written, and which images are held out; nothing is into the data.
        keep: Whether the files of a training in that folder stay as they are, as for a test. If the data or the options
            are others now, a folder in it is used.
    """
    members = {name: datasets(cfg, [loader]) for name, loader in zip(PARTS, LOADERS, strict=True)}
    used = [dataset for part in members.values() for dataset in part]
    kinds = {KINDS.get(dataset.reader) for dataset in used}
    why = ('the config has data sets of unknown or different kinds' if None in kinds or len(kinds) != 1 else
           'a loader of the config has several data sets' if any(len(part) > 1 for part in members.values()) else
           'the data is not on a disk' if any(dataset.is_elsewhere for dataset in used) else '')
    if why:
        if options.given:
            raise ConfigError(f'{", ".join(options.given)} cannot be used: {why}. Set its data with --cfg-options')
        return
    root, kind = Path(root).expanduser().absolute(), kinds.pop()
    if not root.is_dir():
        near = [path.name for path in root.parent.iterdir() if path.is_dir()] if root.parent.is_dir() else []
        raise DataError(f'--data-root: there is no folder {root}{did_you_mean(root.name, near, 3)}')
    free = {'--ignore-label'} if kind is _SEGMENTATION else set()
    if set(options.given) <= free and kind.find is not find_unlabelled and _is_in_place(used) and not (
            kind.find is find_detection and cfg.get('classes_from_data') and _differ_in_classes(used)):
        layout = Layout('layout of the config', root, {
            name: Part(part[0].folder(kind.images), part[0].folder(kind.maps) if kind.maps else
                       part[0].ann_file if part[0].get('ann_file') else None)
            for name, part in members.items() if part and (not kind.maps or part[0].prefixes.get(kind.maps))})
    else:
        folder = Path(folder).absolute()
        if set(options.given) <= {'--palette', '--ignore-label'} and kind.find is not find_unlabelled:
            _reject_part(root)
        try:
            with Made(folder, root, keep) as made:
                layout = kind.find(cfg, root, options, made)
        except KeptError:
            with Made(folder, root, aside=True) as made:
                layout = kind.find(cfg, root, options, made)
        if made.share:
            cfg.val_share = made.share  # for tests of a checkpoint without the folder
        if layout is None:
            _reject_other(cfg, kind, root, used)
            return
        _point(cfg, layout, kind)
    if options.ignore_label:
        ignore(cfg, layout, sorted(set(options.ignore_label)))
    if is_first_of_any_launcher():
        print_log(f'\n{describe(layout)}', logger='current')


def _reject_other(cfg, kind, root, used):
    """Raise an error if a folder only has other data than the config reads; the data check reports missing files."""
    seen = {other: words for other in KINDS.values() if (words := other.seen(root))}
    if seen and kind.configs and kind not in seen:
        words = '; '.join(f'{words} (use {of_same_size(other.configs, cfg)})' for other, words in seen.items())
        raise DataError(f'{root} has no data that this config can read. It has {words}' + (
            '. If each number in these is an object: --instances number' * (
                kind.find is find_detection and seen.keys() == {_SEGMENTATION})))
    named = [*dict.fromkeys(str(part.ann_file if part.get('ann_file') else part.folder(kind.images)) for part in used)]
    if kind in seen and not any(map(os.path.exists, named)):
        raise DataError(f'{root} has {seen[kind]}, but the config names other data, which does not exist: '
                        f'{listed(named)}. To use what is there, name its training part with --train-images DIR '
                        'or --train-annotations FILE; otherwise set ann_file and data_prefix in your config')


def _reject_part(root):
    """Raise an error if a folder is the training part of a data set, whose validation part is beside it."""
    part, rest = part_in(root.name)
    inside, beside = ([path.name for path in sorted(folder.iterdir()) if path.is_dir() and part_in(path.name) == (
        'val', rest)] for folder in (root, root.parent))
    if part == 'train' and beside and not inside:
        whole = root.parent.parent if root.parent.name in ('images', *MAPS) else root.parent
        raise DataError(f'--data-root: {root} is only the training part of a data set, and {beside[0]} beside it is '
                        f'the validation part: give {whole}. To hold out some images of this part instead, add '
                        '--val-share 0.2')


def _is_in_place(used):
    """Whether all paths of the data sets exist and name files as they do; metrics report their missing files later."""
    return all(path.exists() and dataset['type'] != OF_FOLDERS for dataset in used for path in (
        *([dataset.ann_file] if dataset.get('ann_file') else []),
        *(dataset.folder(key) for key in dataset.prefixes if dataset.prefixes[key])))


def _differ_in_classes(used):
    """Whether annotation files list other classes or another order; what cannot be read is reported later."""
    with suppress(DataError, TypeError):
        return len({classes_of_data(dataset)['classes'] for dataset in used}) > 1


def _point(cfg, layout, kind):
    """Make the data sets and metrics of a config read the parts of a layout."""
    for name, loader in zip(PARTS, LOADERS, strict=True):
        part = layout.parts.get(name) or (layout.parts.get('val') if name == 'test' else None)
        if part is None or not cfg.get(loader):
            continue
        cfg[loader] = copy.deepcopy(cfg[loader])  # test and validation may share one
        dataset = datasets(cfg, [loader])[0]
        annotations, before = below(part.annotations, layout.root) if part.annotations else '', dataset.ann_file
        dataset['data_root'] = str(layout.root)
        prefix = {kind.images: below(part.images, layout.root), **({kind.maps: annotations} if kind.maps else {})}
        dataset['data_prefix'] = dict(dataset.prefixes, **prefix)
        dataset.update(part.dataset, **({} if kind.maps else dict(ann_file=annotations)))
        evaluator = loader.replace('dataloader', 'evaluator')
        if annotations and not kind.maps and name != 'train' and cfg.get(evaluator):
            cfg[evaluator] = copy.deepcopy(cfg[evaluator])
            # another existing file is the user's own
            read = [key for key, file in annotation_files(cfg, [loader])
                    if file.absolute() == before or not file.exists()]
            for key, metric in evaluators(cfg, [loader]):
                if key in read:
                    metric.ann_file = str(part.annotations)
