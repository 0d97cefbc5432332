"""Folders of images for each class: those of training and validation by their usual names."""
from pathlib import Path

from ...errors import DataError
from ..datasets import prefixes_of
from .layout import Layout, Part
from .names import WORDS

#: Who has no validation data tests while training.
_NAMES = dict(WORDS, val=(*WORDS['val'], *WORDS['test']))


def find_class_folders(cfg, root: Path, options, folder: Path):
    """Recognise a folder with data for classification, see `xcit_dense.data.layouts.placing`.

    Returns:
        A `Layout`, or None where nothing is recognised and the config stays as it is.
    """
    images = {part: getattr(options, f'{part}_images') for part in _NAMES}
    options.refuse(*(name for name in options.given if not name.endswith('-images')),
                   why='has no effect: the folders of the images are their classes')
    parts = {}
    for part, names in _NAMES.items():
        given = images[part]
        found = next((path for name in ([given] if given else names) if _has_folders(path := root / name)), None)
        if given and found is None:
            raise DataError(f'--{part}-images {given}: there is no folder of folders {root / given}')
        if found and found not in [other.images for other in parts.values()]:
            parts[part] = Part(found, None)
    # a folder that the config names itself is meant
    named = [prefixes_of(cfg[f'{part}_dataloader'].dataset).get('img_path') for part in parts
             if cfg.get(f'{part}_dataloader')]
    if not options.given and {*named} - {'train', 'val'}:
        return None
    listed = [cfg[f'{part}_dataloader'].dataset for part in parts if cfg.get(f'{part}_dataloader')]
    if set(parts) < {'train', 'val'} or any(data.get('ann_file') or data.get('split') or not prefixes_of(data)
                                            for data in listed):
        return None
    return Layout('folders of classes', root, parts)


def _has_folders(path):
    return path.is_dir() and any(entry.is_dir() and not entry.name.startswith('.') for entry in path.iterdir())
