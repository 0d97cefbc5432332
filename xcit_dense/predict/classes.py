"""What the outputs of a model mean: the names of its classes and their numbers in the data set."""
from contextlib import suppress
from itertools import chain, tee
from typing import NamedTuple

from ..data.check.agreement import wanted_classes
from ..data.classes import class_count, classes_of_data, heads_of_classes
from ..data.datasets import LOADERS, datasets
from ..data.files import read_class_list, read_json
from ..data.label_maps import first_label, label_map, labels_in_files, names_path_of, own_ignored, without_ignored
from ..errors import DataError

#: The category ids of COCO 2017 are 1 to 90 except these.
_COCO_GAPS = (12, 26, 29, 30, 45, 66, 68, 69, 71, 83)


class Classes(NamedTuple):
    """Names and numbers of classes, in the order of the model's outputs, and descriptions of where each was found."""
    names: tuple
    numbers: tuple
    names_from: str
    numbers_from: str


def classes_of_objects(cfg, meta, checkpoint) -> Classes:
    """Return the classes of a detector, with category ids.

    Names are taken from the first of these that has them: the checkpoint, the config, an annotation file, the data
    set's class. The last two count only with the same number of names as the model has outputs.

    Ids are taken from the first of these: an annotation file of the config that has all the names, the checkpoint,
    COCO for COCO's names; otherwise they are 1, 2, 3 and so on. If the checkpoint does not record the ids of its
    training, names are in the order of that annotation file: mmdet numbers classes by it, whatever the order in the
    config.
    """
    files, again = tee(_annotation_files(cfg))  # a large file is read only if those before it are not enough
    names, origin = _names(cfg, meta, checkpoint, ((ids.keys(), path) for path, ids in files))
    knows_ids = len(meta.get('category_ids') or ()) == len(names)
    for path, ids in again:
        if set(names) <= ids.keys():
            names = names if knows_ids else tuple(name for name in ids if name in names)
            return Classes(names, tuple(ids[name] for name in names), origin, str(path))
    if knows_ids:
        return Classes(names, tuple(meta['category_ids']), origin, str(checkpoint))
    from mmdet.datasets import CocoDataset
    if names == tuple(CocoDataset.METAINFO['classes']):
        return Classes(names, tuple(i for i in range(1, 91) if i not in _COCO_GAPS), origin, 'COCO 2017')
    return Classes(names, tuple(range(1, len(names) + 1)), origin,
                   'counted from 1, as neither an annotation file of the config nor the checkpoint has them')


def image_ids(cfg, paths) -> tuple:
    """Return the ids of image files, and a description of where they come from.

    They come from the first of these that has one for every image: the annotation file of the test data; the number in
    the file name, as in COCO, if all are different; the position among the files, from 1.
    """
    dataset = test_dataset(cfg)
    folder = dataset.folder('img').resolve()
    with suppress(KeyError, OSError, TypeError, ValueError):  # images are elsewhere, or the file does not have them all
        names = [path.resolve().relative_to(folder).as_posix() for path in paths]
        ids = {image['file_name']: image['id'] for image in read_json(dataset.ann_file)['images']}
        return [ids[name] for name in names], f'those of {dataset.ann_file}'
    if all(path.stem.isdecimal() for path in paths) and len({int(path.stem) for path in paths}) == len(paths):
        return [int(path.stem) for path in paths], 'the numbers in the file names'
    return list(range(1, len(paths) + 1)), 'counted from 1 in the order of the files'


def classes_of_pixels(cfg, meta, checkpoint) -> Classes:
    """Return the classes of a segmentor, with their numbers in the label files that it was trained on.

    The numbers count from 0, or from 1 if 0 is unlabelled (``reduce_zero_label``), without the ignored ones. Names are
    found as by `classes_of_objects`; ``classes.txt`` takes the place of the annotation file.
    """
    dataset = test_dataset(cfg)
    file, in_list = names_path_of(dataset), None
    with suppress(DataError):
        in_list = read_class_list(file)
    first, ignored = first_label(dataset), own_ignored(dataset)
    in_list = without_ignored(in_list or (), first, ignored)
    names, origin = _names(cfg, meta, checkpoint, [(in_list, file)] if in_list else [])
    changed, numbers_from = label_map(first, ignored, len(names)), f'the config ({_title(dataset)})'
    if 'reduce_zero_label' in meta:
        first, changed, numbers_from = int(meta['reduce_zero_label']), meta.get('label_map'), str(checkpoint)
    return Classes(names, labels_in_files(first, changed, len(names)), origin, numbers_from)


def test_dataset(cfg):
    """Return the data set whose pipeline predictions use: the first of the test data, otherwise of the validation data;
    `DataError` if the config has neither."""
    found = datasets(cfg, LOADERS[:0:-1])
    if not found:
        raise DataError('the config has neither test_dataloader nor val_dataloader, whose pipeline defines how images '
                        'are read. Add one to the config')
    return found[0]


def _names(cfg, meta, checkpoint, in_files):
    """Return the names of the outputs, and where they come from."""
    dataset = test_dataset(cfg)
    if meta.get('classes'):
        names = meta['classes']
        return (names, ) if isinstance(names, str) else tuple(names), str(checkpoint)
    if (dataset.get('metainfo') or {}).get('classes'):
        return wanted_classes(dataset, False), 'the config'
    count = next(map(class_count, heads_of_classes(cfg.model)), None)
    for names, origin in chain(in_files, [(dataset.own_classes, _title(dataset))]):
        if names and count in (None, len(names)):
            return tuple(names), str(origin)
    return tuple(map(str, range(count or 0))), (
        f'their numbers, as no names were found for {count} classes; set metainfo.classes of the test data set')


def _annotation_files(cfg):
    """Yield path and category ids by name for each annotation file of the config that exists."""
    seen = set()
    for dataset in datasets(cfg, LOADERS[::-1]):
        path = dataset.ann_file
        if path not in seen and path.is_file():
            seen.add(path)
            with suppress(DataError):
                found = classes_of_data(dataset)
                yield path, dict(zip(found['classes'], found['category_ids'], strict=True))


def _title(dataset):
    return getattr(dataset.type, '__name__', str(dataset.get('type')))
