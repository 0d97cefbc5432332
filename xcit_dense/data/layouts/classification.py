"""Folders with data for classification, one of images for each class, and with images without labels."""
from pathlib import Path

from ...errors import DataError
from ..datasets import datasets
from ..folders import IMAGE_SUFFIXES, WORDS
from ..unlabelled import UnlabelledSource
from .layout import Layout, Part

#: Without validation data, the test data is used for validation.
_NAMES = dict(WORDS, val=(*WORDS['val'], *WORDS['test']))


def find_class_folders(cfg, root: Path, options, made):
    """Recognise a folder with data for classification, see `xcit_dense.data.layouts.recognition`.

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
    listed = datasets(cfg, [f'{part}_dataloader' for part in parts])
    # a folder that the config itself names takes precedence
    if not options.given and {data.prefixes.get('img_path') for data in listed} - {'train', 'val'}:
        return None
    if set(parts) < {'train', 'val'} or any(data.get('ann_file') or data.get('split') or not data.prefixes
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


def find_unlabelled(cfg, root: Path, options, made):
    """Find the images below a folder, see `xcit_dense.data.layouts.recognition`.

    Returns:
        A `Layout`, or None if the config stays as it is: it lists the images itself, or there is no such folder.

    Raises:
        ConfigError: There is an option for something else than the training images.
        DataError: There are no images.
    """
    options.refuse(*(name for name in options.given if name != '--train-images'),
                   why='has no effect: the config trains on images without labels')
    dataset, = datasets(cfg, ['train_dataloader'])
    images = options.path('train', 'images', root) or root / (dataset.prefixes.get('img_path') or '')
    if dataset.get('ann_file') and not options.given or not images.is_dir():
        return None
    source = UnlabelledSource(dict(dataset, data_prefix=dict(img_path=str(images)), ann_file=''))
    count = len(source.images())
    if not count:
        raise DataError(source.nothing())
    # written into the config, so that nobody has to find out again
    settings = dict(left_out=list(source.left_out))
    return Layout('images without labels', root, dict(train=Part(images, None, settings, count)),
                  notes=[source.describe()] if source.left_out and dataset.get('left_out') is None else [])
