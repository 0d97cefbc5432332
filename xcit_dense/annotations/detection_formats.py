"""Folders with data for detection: COCO annotation files, or YOLO labels."""
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from .._utils.text import listed
from ..data.datasets import LOADERS, datasets
from ..data.folders import seen_in
from ..errors import ConfigError, DataError
from . import coco
from .derived import Made, hold_out
from .types import PARTS, Layout, below
from .yolo import find_yolo, read_yolo

#: The files that the configs of this package name, whatever is in the data root.
_OF_COCO = ('annotations/instances_train2017.json', 'annotations/instances_val2017.json')


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
    name, parts = _parts(cfg, root, options)
    if not parts:
        if options.given:
            raise DataError(f'{root} has no COCO annotation file and no YOLO data.yaml. Found:\n{seen_in(root)}\nName '
                            'the file with --train-annotations FILE')
        return None
    options.choose_val(parts, root)
    notes = []
    if {'val', 'test'} <= parts.keys() and not parts['test'].content['annotations']:
        notes.append(f'{below(parts.pop("test").annotations, root)} has no objects, so it is not used for testing')
    with made:
        if 'train' in parts and 'val' not in parts:
            parts, divided = divide(parts, made, root, options.val_share)
            notes.append(divided)
        if cfg.get('classes_from_data') and (left_out := coco.without_parents(list(parts.values()), root)):
            notes.append(f'without the category {listed(map(repr, left_out))}, which has no objects and is only the '
                         'parent of others')
        if cfg.get('classes_from_data'):
            with suppress(TypeError):  # of ids that the check reports
                coco.number_alike(parts.values(), root)
        for key, part in parts.items():
            if part.origin:
                part.annotations = made.write_json(f'{key}.json', part.content)
            part.count, part.objects = len(part.content['images']), len(part.content['annotations'])
    notes += [f'no object in the {PARTS[key]} data, so its AP is -1: are annotations or labels missing?'
              for key in ('val', 'test') if key in parts and not parts[key].objects]
    if any(part.origin for part in parts.values()):
        notes.append(f'the annotations that are used are in {made.folder}')
    notes += [note for part in parts.values() for note in part.notes]
    classes = next(iter(parts.values())).content['categories']
    return Layout(name, root, parts, tuple(str(category.get('name')) for category in classes), notes)


def seen_for_detection(root: Path) -> str:
    """Describe what a folder has for detection; '' if it has nothing."""
    try:
        if files := coco.find_files(coco.folders_of(root)):
            return f'COCO annotations in {below(files[0][0], root)}'
        yolo = _find_yolo(root, coco.folders_of(root))
    except DataError:  # there is something, but it cannot be used as it is
        return ''
    return f'YOLO labels in {below(yolo, root) if yolo != root else "labels/"}' if yolo else ''


def _find_yolo(root, folders):
    inner = [path for path in folders if path.parent == root]  # archives often have one folder around everything
    return find_yolo(root) or (find_yolo(inner[0]) if len(inner) == 1 else None)


def divide(parts: dict, made: Made, root: Path, share=None) -> tuple:
    """Divide the training data into training and validation.

    Args:
        parts: `Part` by name.
        made: Stores which images are held out.
        root: The data root.
        share: See `hold_out`, which also describes the errors.

    Returns:
        `Part` by name, and a sentence on what was done.
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


def _parts(cfg, root, options):
    """Return the name of the layout, and each `Part` by name, none if nothing is recognised."""
    given = {part: paths for part in PARTS if (paths := options.paths(part, 'annotations', root, is_file=True))}
    images = {part: path for part in PARTS if (path := options.path(part, 'images', root))}
    named = [path for paths in given.values() for path in paths]
    if yolo := [path for path in named if path.suffix in ('.yaml', '.yml', '.data')]:
        if len(named) > 1:
            raise ConfigError(f'{yolo[0]} describes all parts of YOLO data, and only COCO files are joined: name it '
                              'alone')
        return 'YOLO', read_yolo(yolo[0], root, images)
    folders = coco.folders_of(root)
    yolo = _find_yolo(root, folders)
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
        taken = (*known.values(), *named)
        others = [(path, content) for path, content in coco.find_files(folders) if path not in taken]
        files.update(coco.by_part(others, root, known.keys()))
    if not files:
        return 'YOLO', read_yolo(yolo, root, images) if yolo else {}
    if yolo and 'train' in files.keys() - known.keys():
        raise DataError(f'{root} has COCO annotations, {below(files["train"][0], root)}, and YOLO labels, '
                        f'{below(yolo, root)}. Choose one with --train-annotations FILE')
    parts = {}
    for part in filter(files.get, PARTS):
        path, content = files[part]
        of_config = own[part].folder('img').absolute() if part in own and path == own[part].ann_file else None
        parts[part] = coco.part_from(path, content, part, root, folders, images.get(part), of_config)
        if others := given.get(part, ())[1:]:
            parts[part] = coco.join([parts[part], *(coco.part_from(path, _read_given(part, path), part, root, folders,
                                                         images.get(part)) for path in others)], root)
    return 'COCO', parts


def _read_given(part, path):
    content = coco.read_annotations(path)
    if content is None:
        raise DataError(f'--{part}-annotations: {path} is not a COCO annotation file: it must have the lists images, '
                        'annotations and categories')
    return content
