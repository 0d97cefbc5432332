"""The data sets of a config: which there are, where they lie, what is there."""
import inspect
from importlib import import_module
from pathlib import Path

from mmengine.config import Config

from ..errors import DataError
from .folders import files_below

IMAGE_SUFFIXES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


def check_data(cfg: Config, loaders=LOADERS):
    """Raise one error if a file or folder that the data sets of ``loaders`` name is not there or empty.

    Raises:
        DataError: It gives the expected layout and the absolute paths that were looked at.
    """
    needed = {}
    for dataset in datasets(cfg, loaders):
        root = Path(dataset.get('data_root') or '')
        for part in filter(None, (dataset.get('ann_file'), *prefixes_of(dataset).values())):
            needed[root / part] = root
    states = {path: _state_of(path) for path in needed}
    if set(states.values()) <= {'found'}:
        return
    lines = [f'  {state:7}  {path.absolute()}' for path, state in states.items()]
    roots = ' and '.join(dict.fromkeys(str(root.absolute()) for root in needed.values()))
    raise DataError(f'the data set is not complete under {roots}. The config needs:\n' + '\n'.join(lines)
                    + '\nGive the folder that holds these with --data-root DIR.')


def _state_of(path):
    if not path.exists():
        return 'missing'
    return 'empty' if path.is_dir() and not any(path.iterdir()) else 'found'


def find_images(source):
    """Return the folder and the sorted image files of a file or folder, as `files_below` finds them.

    Raises:
        DataError: There are none.
    """
    source = Path(source).expanduser()
    if source.is_file():
        return source.parent, [source]
    if not source.is_dir():
        raise DataError(f'there is no image or folder {source.absolute()}')
    paths = [path for path in files_below(source) if path.suffix.lower() in IMAGE_SUFFIXES]
    if not paths:
        raise DataError(f'there is no image in {source.absolute()}; looked for {", ".join(IMAGE_SUFFIXES)}')
    return source, paths


def datasets(cfg: Config, loaders) -> list:
    """Return the innermost data sets of some loaders: wrappers such as RepeatDataset hold others."""
    queue = [cfg[name]['dataset'] for name in loaders if cfg.get(name)]
    found = []
    while queue:
        dataset = queue.pop(0)
        inner = dataset.get('datasets') or ([dataset['dataset']] if 'dataset' in dataset else [])
        queue.extend(inner)
        if not inner:
            found.append(dataset)
    return found


def folder_of(dataset, key) -> Path:
    """Return the folder of a key of ``data_prefix``."""
    return Path(dataset.get('data_root') or '', prefixes_of(dataset).get(key) or '').expanduser()


def prefixes_of(dataset) -> dict:
    """Return the ``data_prefix`` of a data set's config; that it has none may be written out as None."""
    return dataset.get('data_prefix') or {}


def type_of(dataset):
    """Return the class of a data set's config, or None where no framework has it."""
    kind = dataset['type']
    if not isinstance(kind, str):
        return kind
    scopes = ('mmseg', 'mmdet') if 'seg_map_path' in prefixes_of(dataset) else ('mmdet', 'mmseg')
    for scope in scopes:
        try:
            found = import_module(f'{scope}.registry').DATASETS.get(kind)
        except ImportError:  # a stack with one of them alone
            continue
        if found is not None:
            return found
    return None


def setting_of(dataset, name, default):
    """Return an argument of a data set: what its config says, or the default of its class, or else ``default``."""
    if name in dataset:
        return dataset[name]
    found = _default_of(type_of(dataset) or object, name)
    return default if found is None else found


def _default_of(kind, name):
    """Return the default of an argument of a class, from the nearest base that has it; None without one."""
    for owner in kind.__mro__:
        parameter = inspect.signature(vars(owner)['__init__']).parameters.get(name) \
            if inspect.isfunction(vars(owner).get('__init__')) else None
        if parameter is not None:
            return None if parameter.default is parameter.empty else parameter.default
    return None
