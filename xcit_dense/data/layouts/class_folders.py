"""A folder of images for each class, in folders for training and validation with their usual names."""
from pathlib import Path

from ...errors import DataError
from ..datasets import IMAGE_SUFFIXES, prefixes_of
from ..names import WORDS
from .layout import Layout, Part

#: Without validation data, the test data is used for validation.
_NAMES = dict(WORDS, val=(*WORDS['val'], *WORDS['test']))


def find_class_folders(cfg, root: Path, options, made):
    """Recognise a folder with data for classification, see `xcit_dense.data.layouts.placing`.

    Returns:
        A `Layout`, or None if nothing is recognised and the config stays as it is.
    """
    images = {part: getattr(options, f'{part}_images') for part in _NAMES}
    options.refuse(*(name for name in options.given if not name.endswith('-images')),
                   why='has no effect: the folder of an image is its class')
    parts = {}
    for part, names in _NAMES.items():
        given = images[part]
        found = next((path for name in ([given] if given else names) if _has_folders(path := root / name)), None)
        if given and found is None:
            raise DataError(f'--{part}-images {given}: {root / given} is not a folder with class folders')
        if found and found not in [other.images for other in parts.values()]:
            parts[part] = Part(found, None)
    # a folder that the config itself names takes precedence
    named = [prefixes_of(cfg[f'{part}_dataloader'].dataset).get('img_path') for part in parts
             if cfg.get(f'{part}_dataloader')]
    if not options.given and {*named} - {'train', 'val'}:
        return None
    listed = [cfg[f'{part}_dataloader'].dataset for part in parts if cfg.get(f'{part}_dataloader')]
    if set(parts) < {'train', 'val'} or any(data.get('ann_file') or data.get('split') or not prefixes_of(data)
                                            for data in listed):
        return None
    return Layout('class folders', root, parts)


def seen_for_classification(root: Path) -> str:
    """Describe what a folder has for classification; '' if it has nothing."""
    for name in _NAMES['train']:
        folders = sorted(entry for entry in (root / name).glob('[!.]*') if entry.is_dir())
        # a folder of images next to one of labels is no class
        if len(folders) > 1 and all(folder.name != 'images' and _has_images(folder) for folder in folders):
            return f'a folder of images for each class in {name}'
    return ''


def _has_images(folder):
    return any(path.suffix.lower() in IMAGE_SUFFIXES for path in folder.iterdir())


def _has_folders(path):
    return path.is_dir() and any(entry.is_dir() and not entry.name.startswith('.') for entry in path.iterdir())
