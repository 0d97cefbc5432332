"""Folders with data for detection: COCO annotation files, or YOLO labels."""
from pathlib import Path

from ..._utils.text import listed
from ...errors import DataError
from ..datasets import LOADERS, datasets
from ..folders import part_of
from ..pipelines import turns_images
from .coco import Source, by_part, find_files, folders_of, read_annotations, source_of, with_ids_from_1, without_parents
from .derived import Made, hold_out
from .layout import PARTS, Layout, Part, below
from .yolo import find_yolo, read_yolo

#: The files that the configs of this package name, whatever is in the data root.
_OF_COCO = ('annotations/instances_train2017.json', 'annotations/instances_val2017.json')


def find_detection(cfg, root: Path, options, made: Made):
    """Recognise a folder with data for detection, see `recognition.Kind`.

    Returns:
        A `Layout`, or None if nothing is recognised and the config stays as it is.
    """
    options.refuse('--palette', '--ignore-label', why='is only for segmentation')
    if not root.is_dir() or not options.given and _names_its_own(cfg):
        return None
    name, sources, notes = _Finder(cfg, root, options).run()
    if not sources:
        if options.given:
            raise DataError(f'{root} has no COCO annotation file and no YOLO data.yaml, only {_seen(root)}. Name the '
                            'file with --train-annotations FILE')
        return None
    with made:
        if 'train' in sources and 'val' not in sources:
            sources, divided = divide(sources, made, root, options.val_share)
            notes.insert(0, divided)
        else:
            options.refuse('--val-share', why=f'has no effect: {root} has validation data')
        if cfg.get('classes_from_data') and (left_out := without_parents(sources.values(), root)):
            notes.append(f'without the category {listed(map(repr, left_out))}, which has no objects and is only the '
                         'parent of others')
        for part in {'val', 'test'} & set(sources):
            with_ids_from_1(sources[part])
        parts = {part: Part(source.images, made.write_json(f'{part}.json', source.content) if source.changed else
                            source.path, count=len(source.content['images']),
                            objects=len(source.content['annotations']), origin=source.changed)
                 for part, source in sources.items()}
    notes += [f'no object in the {PARTS[part]} data, so its AP is -1: are annotations or labels missing?'
              for part in ('val', 'test') if part in sources and not sources[part].content['annotations']]
    if any(source.changed for source in sources.values()):
        notes.append(f'the annotations that are used are in {made.folder}')
    notes += [note for source in sources.values() for note in source.notes]
    classes = next(iter(sources.values())).content['categories']
    return Layout(name, root, parts, tuple(str(category.get('name')) for category in classes), notes)


def seen_for_detection(root: Path) -> str:
    """Describe what a folder has for detection; '' if it has nothing."""
    try:
        if files := find_files(folders_of(root)):
            return f'COCO annotations in {below(files[0][0], root)}'
        yolo = _find_yolo(root, folders_of(root))
    except DataError:  # there is something, but it cannot be used as it is
        return ''
    return f'YOLO labels in {below(yolo, root) if yolo != root else "labels/"}' if yolo else ''


def _find_yolo(root, folders):
    inner = [path for path in folders if path.parent == root]  # archives often have one folder around everything
    return find_yolo(root) or (find_yolo(inner[0]) if len(inner) == 1 else None)


def _names_its_own(cfg):
    """Whether a config names its own file and that does not exist: a mistake, which another file must not hide."""
    files = [Path(dataset.get('ann_file') or '') for dataset in datasets(cfg, LOADERS)
             if not dataset.ann_file.exists() and dataset.get('ann_file') not in _OF_COCO]
    # those of `Made` are absolute, and are made anew if the work dir was moved
    return not all(file.is_absolute() and file.parent.name == 'data' and file.stem in PARTS for file in files)


def _seen(root):
    names = sorted(path.name + ('/' if path.is_dir() else '') for path in root.iterdir())
    return listed(names, 8) or 'nothing'


def divide(sources: dict, made: Made, root: Path, share=None) -> tuple:
    """Divide the training data into training and validation.

    Args:
        sources: `Source` by part.
        made: Stores which images are held out.
        root: The data root.
        share: See `hold_out`, which also describes the errors.

    Returns:
        `Source` by part, and a sentence on what was done.
    """
    sources = dict(sources)
    source = sources['train']
    content, file = source.content, below(source.path, root)
    annotated = {annotation.get('image_id') for annotation in content['annotations']}
    held, share = hold_out([image['file_name'] for image in content['images']], made, file, '--val-annotations FILE',
                           share, [image['file_name'] for image in content['images'] if image['id'] in annotated])
    for part in ('train', 'val'):
        half = _part_of(content, held, part == 'val', f'{PARTS[part]} images of {file}')
        sources[part] = Source(source.path, half, source.images, f'from {source.changed or file}')
    sources['train'].notes = source.notes
    words = f'{share:.3g} of the images are held out for validation, the same ones in every run'
    return {part: sources[part] for part in PARTS if part in sources}, words


def _part_of(content, held, is_held, words):
    """Return the content of a file for the images that are held out, or for the others."""
    ids = {image['id'] for image in content['images'] if image['file_name'] in held}
    images = [image for image in content['images'] if (image['file_name'] in held) == is_held]
    # those without an image stay in the training data, so that the data check reports them
    annotations = [annotation for annotation in content['annotations']
                   if (annotation.get('image_id') in ids) == is_held]
    return dict(content, info=dict(description=words), images=images, annotations=annotations)


class _Finder:
    """Finds what is in a folder, and what the options say about it."""

    def __init__(self, cfg, root, options):
        self.root, self.options = root, options
        self.of_config = {part: datasets(cfg, [loader])[0] for part, loader in zip(PARTS, LOADERS, strict=True)
                          if datasets(cfg, [loader])}
        self.turned = all(map(turns_images, self.of_config.values()))
        self.given = {part: path for part in PARTS if (path := options.path(part, 'annotations', root, is_file=True))}
        self.images = {part: path for part in PARTS if (path := options.path(part, 'images', root))}

    def run(self):
        """Return the name of the layout, a `Source` by part, and notes."""
        if yolo := [path for path in self.given.values() if path.suffix in ('.yaml', '.yml', '.data')]:
            return 'YOLO', read_yolo(yolo[0], self.root, self.turned, self.images), []
        folders = folders_of(self.root)
        yolo = _find_yolo(self.root, folders)
        known = {**self._in_place(), **{part: (path, self._read(part, path)) for part, path in self.given.items()}}
        files = {**self._found(folders, known), **known}
        if not files:
            return 'YOLO', read_yolo(yolo, self.root, self.turned, self.images) if yolo else {}, []
        if yolo and 'train' not in known and 'train' in files:
            raise DataError(f'{self.root} has COCO annotations, {below(files["train"][0], self.root)}, and YOLO '
                            f'labels, {below(yolo, self.root)}. Choose one with --train-annotations FILE')
        sources = {part: self._source(part, *file, folders) for part, file in files.items()}
        notes = []
        if 'val' in sources and 'test' in sources and not sources['test'].content['annotations']:
            notes.append(f'{below(sources.pop("test").path, self.root)} has no objects, so it is not used for testing')
        return 'COCO', sources, notes

    def _read(self, part, path):
        content = read_annotations(path, f'--{part}-annotations: ')
        if content is None:
            raise DataError(f'--{part}-annotations: {path} is not a COCO annotation file: it must have the lists '
                            'images, annotations and categories')
        return content

    def _in_place(self):
        """Return the annotation files that are where the config says, with their images."""
        found = {}
        for part, dataset in self.of_config.items():
            path = dataset.ann_file
            is_there = path.is_file() and dataset.folder('img').is_dir()
            # two loaders may read one file
            if is_there and path not in [file for file, _ in found.values()] and (content := read_annotations(path)):
                found[part] = path, content
        return found

    def _found(self, folders, known):
        """Return the annotation files of parts that are not known yet."""
        if {'train', 'val'} <= set(known):
            return {}
        named = [dataset.ann_file for dataset in self.of_config.values()]
        files = [(path, content, part_of(path, self.root)) for path, content in find_files(folders, named)]
        taken = [path for path, _ in known.values()]
        parts = by_part([(path, content) for path, content, part in files if path not in taken and part not in known
                         and (part or 'train' not in known)], self.root)
        if None in parts:  # one for all images
            parts['train'] = parts.pop(None)
        return parts

    def _source(self, part, path, content, folders):
        dataset, images, known = self.of_config.get(part), self.images.get(part), None
        if images is None and part not in self.given and dataset and path == dataset.ann_file:
            known = dataset.folder('img').absolute()  # the data check reports missing images
            if known.is_dir():
                return Source(path, content, known)
        return source_of(path, content, part, self.root, folders, images, known)
