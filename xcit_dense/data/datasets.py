"""The data sets of a config: which there are, where they are, and whether their files exist."""
import inspect
import logging
import os
from collections import Counter
from importlib import import_module
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log

from ..errors import DataError
from .folders import files_below, seen_in

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
#: The data sets of mmpretrain that read folders of images, by their names, and ours for its models.
_OF_MMPRETRAIN = ('CustomDataset', 'ImageNet', 'ImageNet21k', 'UnlabelledImages')


def check_data(cfg: Config, loaders=LOADERS, on_findings: str = 'stop'):
    """Raise one error if a file or folder of the data sets of ``loaders`` does not exist or is empty.

    Data that is not on a disk is left to the framework.

    Args:
        cfg: The config.
        loaders: The loaders that will be used.
        on_findings: ``stop``, or ``warn`` to log what is missing and continue.

    Raises:
        DataError: It shows the expected layout and the absolute paths that were checked.
    """
    needed = {}
    for dataset in datasets(cfg, loaders):
        root = Path(dataset.get('data_root') or '').expanduser()
        for part in () if is_elsewhere(dataset) else _needed_by(dataset):
            needed[root / Path(part).expanduser()] = root
    states = {path: _state_of(path) for path in needed}
    if set(states.values()) <= {'found'}:
        return
    lines = [f'  {state:7}  {path.absolute()}' for path, state in states.items()]
    roots = ' and '.join(dict.fromkeys(str(root.absolute()) for root in needed.values()))
    are_gone = not any(root.is_dir() for root in needed.values())
    text = ((f'there is no folder {roots}: set --data-root DIR to the folder of the data set' if are_gone else
             f'the data set under {roots} is incomplete') + '. The config needs:\n' + '\n'.join(lines)
            + ('' if are_gone else '\nSet --data-root DIR to the folder that contains these.')
            + ''.join(f'\nFound in {root}:\n{seen_in(root)}' for root in dict.fromkeys(needed.values())
                      if root.is_dir()))
    if not are_gone and not any(map(is_of_mmpretrain, datasets(cfg, loaders))):
        text += '\nFor other names use --train-images, --train-annotations, --val-images and --val-annotations.'
    if cfg.get('classes_from_data'):
        text += '\nOther layouts that are recognised: docs/own_data.md.'
    if on_findings == 'stop':
        raise DataError(text)
    print_log(text, logger='current', level=logging.WARNING)


def _needed_by(dataset):
    """Return what a data set reads below its root; those of mmpretrain that download their files need nothing."""
    named = [dataset.get('ann_file'), *prefixes_of(dataset).values()]
    if reader_of(dataset) in ('CustomDataset', 'UnlabelledImages'):
        return [*filter(None, named)] or ['']
    return [] if is_of_mmpretrain(dataset) else filter(None, named)


def _state_of(path):
    if not path.exists():
        return 'missing'
    return 'empty' if path.is_dir() and not any(path.iterdir()) else 'found'


def find_images(source, suffixes=IMAGE_SUFFIXES):
    """Return the folder and the sorted image files of a file or folder, as `files_below` finds them.

    Args:
        source: The file or folder; a file is used whatever its suffix is.
        suffixes: The suffixes of images in a folder.

    Raises:
        DataError: There are no images.
    """
    source = Path(source).expanduser()
    if source.is_file():
        return source.parent, [source]
    if not source.is_dir():
        raise DataError(f'there is no image or folder {source.absolute()}')
    paths = [path for path in files_below(source) if path.suffix.lower() in suffixes]
    if not paths:
        raise DataError(f'there is no image in {source.absolute()}; looked for {", ".join(suffixes)}')
    return source, paths


def datasets(cfg: Config, loaders) -> list:
    """Return the innermost data sets of some loaders in order: wrappers such as RepeatDataset contain others."""
    return [dataset for *_, dataset in named_datasets(cfg, loaders)]


def named_datasets(cfg: Config, loaders) -> list:
    """Return the `datasets`, each with its name and its key in the config.

    The name is that of the loader, with a number from 0 if a loader has several: ``train_dataloader.1``.
    """
    queue = [(name, f'{name}.dataset', cfg[name]['dataset']) for name in loaders if cfg.get(name)]
    found = []
    while queue:
        name, key, dataset = queue.pop(0)
        inner = [(name, f'{key}.datasets.{i}', part) for i, part in enumerate(dataset.get('datasets') or ())]
        if not inner and 'dataset' in dataset:
            inner = [(name, f'{key}.dataset', dataset['dataset'])]
        queue = inner + queue
        if not inner:
            found.append((name, key, dataset))
    several = {name for name, amount in Counter(name for name, *_ in found).items() if amount > 1}
    seen = Counter()
    for place, (name, key, dataset) in enumerate(found):
        if name in several:
            found[place] = f'{name}.{seen[name]}', key, dataset
            seen[name] += 1
    return found


def folder_of(dataset, key) -> Path:
    """Return the folder of a key of ``data_prefix``."""
    return Path(dataset.get('data_root') or '', prefixes_of(dataset).get(key) or '').expanduser()


def ann_file_of(dataset) -> Path:
    """Return the absolute path of the annotation file."""
    return Path(Path(dataset.get('data_root') or '').expanduser().absolute(),
                Path(dataset.get('ann_file') or '').expanduser())


def files_of(dataset) -> str:
    """Return a string that is equal for two configs of data sets that read the same files."""
    root = str(dataset.get('data_root') or '')
    paths = [dataset.get('ann_file'), *(f'{key}={value}' for key, value in sorted(prefixes_of(dataset).items()))]
    return repr([str(dataset['type']), root.rstrip('/'), [str(path or '').rstrip('/') for path in paths],
                 dataset.get('indices'), dataset.get('split')])


def prefixes_of(dataset) -> dict:
    """Return the ``data_prefix`` of a data set's config, which may be missing or None.

    For mmpretrain it may be just the folder of the images; for ImageNet the default is the folder of its ``split``.
    """
    prefix = dataset.get('data_prefix') or {}
    if not prefix and dataset.get('split') and is_of_mmpretrain(dataset):
        prefix = dataset['split']
    return dict(img_path=os.path.expanduser(prefix)) if isinstance(prefix, str) else prefix


def is_elsewhere(part) -> bool:
    """Whether files are not on a disk, but at an address (``s3://...``) or behind another backend of mmengine.

    They are left to the framework: nothing here opens them.

    Args:
        part: The config that reads them: a data set with its pipeline, a step of a pipeline, or a metric.
    """
    backend = part.get('backend_args') or part.get('file_client_args') or {}
    paths = [part.get('data_root'), part.get('ann_file'), *prefixes_of(part).values()]
    return (backend.get('backend', 'local') not in ('local', 'disk') or any('://' in str(path) for path in paths)
            or any(map(is_elsewhere, dicts_in(part.get('pipeline') or ()))))


def dicts_in(node):
    """Yield every dict in a part of a config, in order."""
    if isinstance(node, dict):
        yield node
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ():
        yield from dicts_in(value)


def is_of_mmpretrain(dataset) -> bool:
    """Whether a data set is mmpretrain's according to its config, without an import of the framework."""
    kind = dataset.get('type')
    if isinstance(kind, str):
        return kind.startswith('mmpretrain.') or kind in _OF_MMPRETRAIN or isinstance(dataset.get('data_prefix'), str)
    return 'mmpretrain' in _roots_of(kind)


def reader_of(dataset) -> str:
    """Return the framework class whose way of listing images a data set uses, or '' if it uses its own."""
    kind = type_of(dataset)
    reads = {method: getattr(kind, method, None) for method in ('load_data_list', 'parse_data_info')}
    names = {method: getattr(read, '__qualname__', '').partition('.')[0] for method, read in reads.items()}
    known = names['load_data_list'] != 'CocoDataset' or names['parse_data_info'] == 'CocoDataset'
    if names['load_data_list'] == 'CustomDataset':  # other packages use this name too
        known = reads['load_data_list'].__module__.startswith('mmpretrain.')
    return names['load_data_list'] if known else ''


def type_of(dataset):
    """Return the class of a data set's config, or None if no framework has it."""
    return class_of(dataset, 'DATASETS', dataset['type'])


def class_of(dataset, registry, kind):
    """Return the class of a type in a data set's config, or None if no framework has it.

    Args:
        dataset: The config.
        registry: The name of the frameworks' registries.
        kind: The type: a name, with or without its scope, or the class.
    """
    if not isinstance(kind, str):
        return kind
    for scope in _scopes_of(dataset, registry):
        try:
            found = getattr(import_module(f'{scope}.registry'), registry).get(kind)
        except (ImportError, RuntimeError):  # a framework is missing; no such dotted name
            continue
        if found is not None:
            return found
    return None


def _scopes_of(dataset, registry):
    """Return the frameworks in the order in which they are searched for a name that several may have.

    mmpretrain takes seconds to import: it is searched first for its own data sets and their parts, last for data sets
    that the others do not have, and for nothing else.
    """
    first = 'mmseg' if {'img_path', 'seg_map_path'} & set(prefixes_of(dataset)) else 'mmdet'
    is_its_own = is_of_mmpretrain(dataset)
    if registry == 'TRANSFORMS' and dataset.get('type'):  # the parts of a data set are from its own framework
        roots = _roots_of(type_of(dataset))
        first = next((root for root in roots if root in ('mmdet', 'mmseg')), first)
        is_its_own = is_its_own or 'mmpretrain' in roots
    others = ('mmseg', 'mmdet') if first == 'mmseg' else ('mmdet', 'mmseg')
    if is_its_own:
        return 'mmpretrain', *others
    return (*others, 'mmpretrain') if registry == 'DATASETS' else others


def _roots_of(kind):
    """Return the packages of a class and its bases, nearest first."""
    return [base.__module__.partition('.')[0] for base in getattr(kind, '__mro__', ())]


def setting_of(dataset, name, default):
    """Return an argument of a data set: from its config, else the default of its class, else ``default``."""
    return argument_of(type_of(dataset), dataset, name, default)


def argument_of(kind, node, name, default):
    """Return an argument of a class: from its config, else its own default, else ``default``."""
    if name in node:
        return node[name]
    found = _default_of(kind, name) if isinstance(kind, type) else None
    return default if found is None else found


def _default_of(kind, name):
    """Return the default of an argument of a class, from the nearest base that has it, or None."""
    for owner in kind.__mro__:
        parameter = inspect.signature(vars(owner)['__init__']).parameters.get(name) \
            if inspect.isfunction(vars(owner).get('__init__')) else None
        if parameter is not None:
            return None if parameter.default is parameter.empty else parameter.default
    return None
