"""The data sets of a config: which there are, where they are, and whether their files exist."""
import inspect
import logging
import os
import re
from collections import UserDict
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from mmengine.config import Config
from mmengine.logging import print_log

from .._utils.files import folder_of
from .._utils.text import packages_in
from ..errors import DataError
from .folders import seen_in

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
#: Data sets of users' classes, by class and arguments, for what those set.
_BUILT = {}
#: The data sets of mmpretrain that read folders of images, by their names, and ours for its models.
_OF_MMPRETRAIN = ('CustomDataset', 'ImageNet', 'ImageNet21k', 'UnlabelledImages')


def check_data(cfg: Config, loaders=LOADERS, on_findings: str = 'stop'):
    """Raise one `DataError`, with the expected layout, if a file or folder of data sets does not exist or is empty.

    With ``on_findings='warn'`` it is only logged. Data that is not on a disk is left to the framework.
    """
    needed = {dataset.root / Path(part).expanduser(): dataset.root for dataset in datasets(cfg, loaders)
              if not dataset.is_elsewhere for part in _needed_by(dataset)}
    states = {path: 'missing' if not path.exists() else 'found' if path.is_file() or any(path.iterdir()) else 'empty'
              for path in needed}
    if set(states.values()) <= {'found'}:
        return
    gone = [str(root.absolute()) for root in dict.fromkeys(needed.values()) if not root.is_dir()]
    has_annotations = not any(dataset.is_of_mmpretrain for dataset in datasets(cfg, loaders))
    page = folder_of('docs') / 'own_data.md'
    text = ((f'there is no folder {" and ".join(gone)}' if gone else 'the data set is incomplete')
            + '. The config needs:\n'
            + '\n'.join(f'  {state:7}  {path.absolute()}' for path, state in states.items())
            + '\nSet --data-root DIR to the folder that contains these. '
            + ('For other names use --train-images, --train-annotations, --val-images and --val-annotations; layouts '
               f'that are recognised: {page}.' if has_annotations else
               f'Layouts that are recognised: {page}.')
            + ''.join(f'\nFound in {root}:\n{seen_in(root)}' for root in dict.fromkeys(needed.values())
                      if root.is_dir()))
    stop_or_warn(text, on_findings)


def stop_or_warn(text: str, on_findings: str):
    """Raise a `DataError` if ``on_findings`` is ``stop``, otherwise log its text as a warning."""
    if on_findings == 'stop':
        raise DataError(text)
    print_log(text, logger='current', level=logging.WARNING)


def _needed_by(dataset):
    """Return what a data set reads below its root; those of mmpretrain that download their files need nothing."""
    no_maps = dataset.reader == 'CocoDataset' and not any(step.get('with_seg') for _, step in dataset.steps)
    named = [dataset.get('ann_file'), *(path for key, path in dataset.prefixes.items() if key != 'seg' or not no_maps)]
    if dataset.reader in ('CustomDataset', 'UnlabelledImages'):
        return [*filter(None, named)] or ['']
    return [] if dataset.is_of_mmpretrain else filter(None, named)


class DataSet(UserDict):
    """A data set of a config: its dict, which it reads and changes, with what the class of its type adds.

    Args:
        name: The name of its loader, with a number from 0 if a loader has several: ``train_dataloader.1``.
        key: Its dotted key in the config.
    """

    def __init__(self, node, name: str = '', key: str = ''):
        self.data, self.name, self.key = node, name, key

    @classmethod
    def of(cls, dataset) -> 'DataSet':
        """Return the view of a dict; a view is returned as it is."""
        return dataset if isinstance(dataset, cls) else cls(dataset)

    @property
    def root(self) -> Path:
        """The data root; the current folder if the config has none."""
        return Path(self.get('data_root') or '').expanduser()

    @property
    def ann_file(self) -> Path:
        """The absolute path of the annotation file."""
        return self.file(self.get('ann_file') or '')

    def file(self, name) -> Path:
        """Return the absolute path of a file below the data root."""
        return Path(self.root.absolute(), Path(name).expanduser())

    @property
    def prefixes(self) -> dict:
        """The ``data_prefix``, which may be missing or None.

        For mmpretrain it may be just the folder of the images; for ImageNet the default is the folder of its ``split``.
        """
        prefix = self.get('data_prefix') or {}
        if not prefix and self.get('split') and self.is_of_mmpretrain:
            prefix = self['split']
        return dict(img_path=os.path.expanduser(prefix)) if isinstance(prefix, str) else prefix

    def folder(self, key: str) -> Path:
        """Return the folder of a key of ``data_prefix``."""
        return Path(self.get('data_root') or '', self.prefixes.get(key) or '').expanduser()

    @property
    def steps(self) -> list:
        """The steps of the pipeline, including nested ones: pairs of class, None if unknown, and config.

        A type may be a name, with or without its scope, or the class itself.
        """
        return [(self.class_of('TRANSFORMS', node['type']), node) for node in dicts_in(self.get('pipeline') or ())
                if node.get('type')]

    @property
    def files(self) -> str:
        """A string that is equal for two data sets that read the same files."""
        return repr([str(self['type']), self.root, Path(self.get('ann_file') or ''),
                     {key: Path(prefix) for key, prefix in self.prefixes.items() if prefix},
                     self.get('indices'), self.get('split')])

    @property
    def is_elsewhere(self) -> bool:
        return is_elsewhere(self)

    @property
    def is_of_mmpretrain(self) -> bool:
        """Whether it is mmpretrain's according to its config, without an import of the framework."""
        kind = self.get('type')
        if isinstance(kind, str):
            return kind.startswith('mmpretrain.') or kind in _OF_MMPRETRAIN or isinstance(self.get('data_prefix'), str)
        return 'mmpretrain' in packages_in(kind)

    @property
    def type(self):
        """Its class, or None if no framework has it."""
        return self.class_of('DATASETS', self['type'])

    @property
    def own_classes(self):
        """The names of the classes of its type, such as ADE20k's; None if the type has none."""
        return getattr(self.type, 'METAINFO', {}).get('classes')

    @property
    def reader(self) -> str:
        """The framework class whose way of listing images it uses, or '' if it uses its own."""
        lists, parses = (getattr(self.type, method, None) for method in ('load_data_list', 'parse_data_info'))
        name, other = (getattr(read, '__qualname__', '').partition('.')[0] for read in (lists, parses))
        if name == 'CustomDataset':  # other packages use this name too
            return name if lists.__module__.startswith('mmpretrain.') else ''
        if name == 'BaseSegDataset' and any(getattr(self.type, method).__qualname__.partition('.')[0] not in (
                name, 'BaseDataset') for method in ('get_label_map', 'get_data_info', 'prepare_data')):
            return ''  # labels or files may mean anything
        return '' if name == 'CocoDataset' != other else name

    def setting(self, name: str, default):
        """Return an argument: from the config, else what a class for label maps sets, its default, or ``default``."""
        if name not in self and self.reader == 'BaseSegDataset':
            given = {key: self[key] for key in sorted({*self} - {'type', '_scope_', 'pipeline', 'test_mode'})}
            key = self.type, repr(given)
            with suppress(Exception):  # of any type, as it may be a user's; the run builds it again
                if key not in _BUILT:
                    _BUILT[key] = self.type(**given, lazy_init=True)
                return getattr(_BUILT[key], name)
        return argument_of(self.type, self, name, default)

    def class_of(self, registry: str, kind):
        """Return the class of a type in its config, or None if no framework has it.

        mmpretrain takes seconds to import: it is searched first for its own data sets and their parts, last for data
        sets that the others do not have, and for nothing else.
        """
        first = 'mmseg' if {'img_path', 'seg_map_path'} & set(self.prefixes) else 'mmdet'
        is_its_own = self.is_of_mmpretrain
        if registry == 'TRANSFORMS' and self.get('type'):  # the parts of a data set are from its own framework
            roots = packages_in(self.type)
            first = next((root for root in roots if root in ('mmdet', 'mmseg')), first)
            is_its_own = is_its_own or 'mmpretrain' in roots
        others = ('mmseg', 'mmdet') if first == 'mmseg' else ('mmdet', 'mmseg')
        last = ('mmpretrain', ) if registry == 'DATASETS' else ()
        return class_in(('mmpretrain', *others) if is_its_own else (*others, *last), registry, kind)


def datasets(cfg: Config, loaders) -> list:
    """Return the innermost data sets of some loaders in order: wrappers such as RepeatDataset contain others."""
    found = []
    for loader in loaders:
        nodes = list(_innermost(cfg[loader]['dataset'], f'{loader}.dataset')) if cfg.get(loader) else []
        found += [DataSet(node, f'{loader}.{number}' if len(nodes) > 1 else loader, key)
                  for number, (node, key) in enumerate(nodes)]
    return found


def only_dataset(cfg: Config, loader: str, readers: tuple):
    """Return the data set of a loader if there is one alone, with one of these readers, on a disk; else None."""
    members = datasets(cfg, [loader])
    return members[0] if len(members) == 1 and members[0].reader in readers and not members[0].is_elsewhere else None


def _innermost(node, key):
    inner = [(part, f'{key}.datasets.{i}') for i, part in enumerate(node.get('datasets') or ())]
    if not inner and 'dataset' in node:
        inner = [(node['dataset'], f'{key}.dataset')]
    if not inner:
        yield node, key
    for part in inner:
        yield from _innermost(*part)


def of_same_size(names: str, cfg: Config) -> str:
    """Return a text about ``*_custom`` configs; if a config is a small one, or based on it, with the small ones."""
    if not re.search(r'_small\.py$', getattr(cfg, 'text', None) or getattr(cfg, 'filename', None) or '', re.M):
        return names
    return names.replace('_xcit_s12_p16_custom', '_xcit_n12_p16_small').replace('xcit_s12_p16_custom',
                                                                                'xcit_n12_p8_small')


def is_elsewhere(part) -> bool:
    """Whether files are not on a disk, but at an address (``s3://...``) or behind another backend of mmengine.

    They are left to the framework: nothing here opens them. The config that reads them is that of a data set with its
    pipeline, of a step of a pipeline, or of a metric.
    """
    backend = part.get('backend_args') or part.get('file_client_args') or {}
    prefix = part.get('data_prefix') or {}
    paths = [part.get('data_root'), part.get('ann_file'), *(prefix.values() if isinstance(prefix, dict) else [prefix])]
    return (backend.get('backend', 'local') not in ('local', 'disk') or any('://' in str(path) for path in paths)
            or any(map(is_elsewhere, dicts_in(part.get('pipeline') or ()))))


def dicts_in(node):
    """Yield every dict in a part of a config, in order."""
    if isinstance(node, Mapping):
        yield node
    for value in node.values() if isinstance(node, Mapping) else node if isinstance(node, (list, tuple)) else ():
        yield from dicts_in(value)


def class_in(frameworks, registry: str, kind):
    """Return the class that a name has in the first of some frameworks, None if none has it; and a class as it is."""
    if not isinstance(kind, str):
        return kind
    for name in frameworks:
        with suppress(ImportError, RuntimeError):  # a framework is missing; no such dotted name
            if (found := getattr(import_module(f'{name}.registry'), registry).get(kind)) is not None:
                return found
    return None


def argument_of(kind, node, name, default):
    """Return an argument of a class: from its config, else its own default or that of a base, else ``default``."""
    if name in node:
        return node[name]
    for owner in getattr(kind, '__mro__', ()):
        if inspect.isfunction(vars(owner).get('__init__')):
            parameter = inspect.signature(vars(owner)['__init__']).parameters.get(name)
            if parameter is not None:
                return default if parameter.default in (parameter.empty, None) else parameter.default
    return default
