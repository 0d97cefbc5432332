"""Folders with data for detection; `FORMATS` is the table of what is read beside COCO's annotation files."""
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .._utils.text import listed
from ..data.datasets import LOADERS, datasets
from ..data.folders import seen_in
from ..errors import ConfigError, DataError
from . import coco
from .derived import Made, hold_out
from .foreign import reject_foreign
from .instances import find_instances, read_instances
from .label_files import FORMATS as LABEL_FILES
from .label_files import find_label_files, read_parts
from .types import NO_OPTIONS, PARTS, Layout, below
from .yolo import DESCRIPTIONS, find_yolo, read_yolo

#: The files that the configs of this package name, whatever is in the data root.
_OF_COCO = ('annotations/instances_train2017.json', 'annotations/instances_val2017.json')
_MASKS = 'masks of objects'


class Format(NamedTuple):
    """A format of labels: ``find``, called with the data root, the folders in it and the options, returns the file or
    folder of such labels, or None; ``read``, called with that, the same and a `Made`, returns each `Part` by name."""
    find: Callable
    read: Callable


#: The masks come last: they are looked for if there is nothing else.
FORMATS = {'YOLO labels': Format(find_yolo, read_yolo),
           **{name: Format(partial(find_label_files, name), partial(read_parts, name)) for name in LABEL_FILES},
           _MASKS: Format(find_instances, read_instances)}


def find_detection(cfg, root: Path, options, made: Made):
    """Recognise a folder with data for detection, see `recognition.Kind`.

    Returns:
        A `Layout`, or None if nothing is recognised and the config stays as it is.
    """
    options.refuse('--palette', '--ignore-label', why='is only for segmentation')
    # a file that the config names itself and that does not exist is a mistake, which another file must not hide
    names = [dataset.get('ann_file') or '' for dataset in datasets(cfg, LOADERS) if not dataset.ann_file.exists()]
    if not options.given and not all(name in _OF_COCO or Path(name).is_absolute() and Path(name).parent.name == 'data'
                                     for name in names):
        return None  # those in data/ are from `Made`, whose folder was moved
    name, parts, notes = _parts(cfg, root, options, made)
    if not parts:
        reject_foreign(root)
        if options.given:
            raise DataError(f'{root} has no annotations in a known format (docs/own_data.md). Found:\n{seen_in(root)}\n'
                            'Name the file or folder with --train-annotations PATH')
        return None
    options.choose_val(parts, root)
    if {'val', 'test'} <= parts.keys() and not parts['test'].content['annotations']:
        notes.append(f'{below(parts.pop("test").annotations, root)} has no objects, so it is not used for testing')
    if 'train' in parts and 'val' not in parts:
        parts, divided = divide(parts, made, root, options.val_share)
        notes.append(divided)
    if cfg.get('classes_from_data'):
        if left_out := coco.without_parents(list(parts.values()), root):
            notes.append(f'without the category {listed(map(repr, left_out))}, which has no objects and is only the '
                         'parent of others')
        with suppress(TypeError):  # of ids that the check reports
            coco.number_alike(parts.values(), root)
    for key, part in parts.items():
        if part.origin:
            part.annotations = made.write_json(f'{key}.json', part.content)
        part.count, part.objects = len(part.content['images']), len(part.content['annotations'])
    classes = [str(category.get('name')) for category in next(iter(parts.values())).content['categories']]
    if same := [name for name, count in Counter(map(str.lower, classes)).items() if count > 1]:
        notes.append(f'classes whose names differ only in case: {listed(same)}')
    notes += [f'no object in the {PARTS[key]} data, so its AP is -1: are annotations or labels missing?'
              for key in ('val', 'test') if key in parts and not parts[key].objects]
    if any(part.origin for part in parts.values()):
        notes.append(f'the annotations that are used are in {made.folder}')
    notes += [note for part in parts.values() for note in part.notes]
    return Layout(name, root, parts, tuple(classes), notes)


def seen_for_detection(root: Path) -> str:
    """Describe what a folder has for detection; '' if it has nothing."""
    folders = coco.folders_of(root)
    with suppress(DataError):  # there is something, but it cannot be used as it is
        if files := coco.find_files(folders):
            return f'COCO annotations in {below(files[0][0], root)}'
        found = _find(root, folders, NO_OPTIONS)
        return listed(f'{name} in {below(place, root)}' for name, place in found.items())
    return ''


def divide(parts: dict, made: Made, root: Path, share=None) -> tuple:
    """Return each `Part` by name, the training data divided into training and validation, and a sentence on that.

    ``made`` and ``share`` are as for `hold_out`, which also describes the errors.
    """
    whole = parts['train']
    content, file = whole.content, below(whole.annotations, root)
    annotated = {annotation.get('image_id') for annotation in content['annotations']}
    held, share = hold_out([image['file_name'] for image in content['images']], made, file, '--val-annotations FILE',
                           share, [image['file_name'] for image in content['images'] if image['id'] in annotated])
    ids = {image['id'] for image in content['images'] if image['file_name'] in held}
    halves = {}
    for name, is_held in (('train', False), ('val', True)):
        # annotations without an image stay in the training data, so that the data check reports them
        half = dict(content, info=dict(description=f'{PARTS[name]} images of {file}'),
                    images=[image for image in content['images'] if (image['file_name'] in held) == is_held],
                    annotations=[annotation for annotation in content['annotations']
                                 if (annotation.get('image_id') in ids) == is_held])
        halves[name] = replace(whole, content=half, origin=f'from {whole.origin or file}',
                               notes=[] if is_held else whole.notes)
    words = f'{share:.3g} of the images are held out for validation, the same ones in every run'
    return {**parts, **halves}, words


def _parts(cfg, root, options, made):
    """Return the name of the layout, each `Part` by name, none if nothing is recognised, and notes."""
    given = {part: paths for part in PARTS if (paths := options.paths(part, 'annotations', root))}
    images = {part: options.path(part, 'images', root) for part in PARTS}
    named, folders, notes = [path for paths in given.values() for path in paths], coco.folders_of(root), []
    described = [path for path in named if path.suffix in DESCRIPTIONS]
    inside = [path for path in named if path.is_dir()]
    if described and len(named) > 1:
        raise ConfigError(f'{described[0]} describes all parts of YOLO data, and only COCO files are joined: name it '
                          'alone')
    if inside and len(inside) < len(named):
        raise ConfigError(f'{inside[0]} is a folder, but not all annotations: name either folders or files')
    if described:
        found = {'YOLO labels': described[0]}
    elif inside:
        found = {name: place for name, place in _find(inside[0], coco.folders_of(inside[0]), options).items()
                 if name in LABEL_FILES and not options.instances} or {_MASKS: inside[0]}
        if alone := [part for part in given if _MASKS in found and not images[part]]:
            raise DataError(f'--{alone[0]}-annotations: {given[alone[0]][0]} has no label files of a known format. For '
                            f'masks as pictures, set --{alone[0]}-images too')
    else:
        parts, known = _parts_of_coco(cfg, root, images, given, folders)
        found = _find(root, folders, options, has_coco=bool(parts))
        if parts and 'YOLO labels' in found and 'train' in parts.keys() - known:
            raise DataError(f'{root} has COCO annotations, {below(parts["train"].annotations, root)}, and YOLO labels, '
                            f'{below(found["YOLO labels"], root)}. Choose one with --train-annotations FILE')
        first = {'COCO': root} if parts else {name: place for name, place in found.items() if name == 'YOLO labels'}
        notes = [f'not used: {name} in {below(place, root)}; to use it: --train-annotations DIR'
                 for name, place in found.items() if first and name in LABEL_FILES and not given]
        found = first or found
    if len(found) > 1:
        words = ', '.join(f'{name} in {below(place, root)}' for name, place in found.items())
        raise DataError(f'{root} has labels in several formats: {words}. Move the files of one elsewhere, or choose a '
                        'folder with --train-annotations DIR')
    for name, source in found.items():
        if name != _MASKS:
            options.refuse('--instances', '--class-name', why=f'is for masks as pictures, and {root} has {name}')
        return name, parts if name == 'COCO' else FORMATS[name].read(source, root, folders, options, made), notes
    return '', {}, notes


def _find(root, folders, options, has_coco=False):
    """Return where a folder has labels of other formats than COCO, by their names; masks if there is nothing else."""
    found = {name: place for name, form in FORMATS.items() if name != _MASKS and not options.instances
             and (place := form.find(root, folders, options))}
    if 'KITTI' in found and found.get('YOLO labels', root).is_dir():  # both are text, but only one can be read
        found.pop('YOLO labels', None)
    if not found and not has_coco and (place := FORMATS[_MASKS].find(root, folders, options)):
        found[_MASKS] = place
    return found


def _parts_of_coco(cfg, root, images, given, folders):
    """Return each `Part` by name, and the names of those whose files the config or the user names."""
    files, own = {}, {part: found[0] for part, loader in zip(PARTS, LOADERS, strict=True)
                      if (found := datasets(cfg, [loader]))}
    for part, dataset in own.items():  # files that are where the config says, with their images
        path, taken = dataset.ann_file, [path for path, _ in files.values()]  # two loaders may read one file
        if (path not in taken and path.is_file() and dataset.folder('img').is_dir()
                and (content := coco.read_annotations(path))):
            files[part] = path, content
    for part, paths in given.items():
        files[part] = paths[0], _read_given(part, paths[0])
    known = {part: path for part, (path, _) in files.items()}
    if not {'train', 'val'} <= known.keys():
        taken = (*known.values(), *(path for paths in given.values() for path in paths))
        others = [(path, content) for path, content in coco.find_files(folders) if path not in taken]
        files.update(coco.by_part(others, root, known.keys()))
    parts = {}
    for part in filter(files.get, PARTS):
        path, content = files[part]
        of_config = own[part].folder('img').absolute() if part in own and path == own[part].ann_file else None
        parts[part] = coco.part_from(path, content, part, root, folders, images[part], of_config)
        if others := given.get(part, ())[1:]:
            parts[part] = coco.join([parts[part], *(coco.part_from(path, _read_given(part, path), part, root, folders,
                                                                   images[part]) for path in others)], root)
    return parts, known.keys()


def _read_given(part, path):
    if (content := coco.read_annotations(path)) is None:
        raise DataError(f'--{part}-annotations: {path} is not a COCO annotation file: it must have the lists images, '
                        'annotations and categories')
    return content
