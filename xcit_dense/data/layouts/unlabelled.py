"""Images without labels, in a folder of any layout."""
from pathlib import Path

from ...errors import DataError
from ..datasets import datasets, prefixes_of
from ..unlabelled import UnlabelledSource
from .layout import Layout, Part


def find_unlabelled(cfg, root: Path, options, made):
    """Find the images below a folder, see `xcit_dense.data.layouts.placing`.

    Returns:
        A `Layout`, or None if the config stays as it is: it lists the images itself, or there is no such folder.

    Raises:
        ConfigError: There is an option for something else than the training images.
        DataError: There are no images.
    """
    options.refuse(*(name for name in options.given if name != '--train-images'),
                   why='has no effect: the config trains on images without labels')
    dataset, = datasets(cfg, ['train_dataloader'])
    images = options.path('train', 'images', root) or root / (prefixes_of(dataset).get('img_path') or '')
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
