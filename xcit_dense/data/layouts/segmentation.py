"""Folders with data for segmentation: images and label maps."""
import os
from pathlib import Path

from ..._utils.text import listed
from ...errors import ConfigError, DataError
from ..classes import heads_of_classes
from ..datasets import LOADERS, datasets
from ..files import IGNORED, read_maps
from ..folders import MAP_SUFFIXES, seen_in
from ..label_maps import first_label, leave_out_255, without_ignored
from .conversion import (
    are_colours,
    combine_masks,
    convert_colours,
    label_studio_masks,
    names_beside,
    palette_beside,
    read_palette,
)
from .derived import hold_out
from .layout import PARTS, Layout, Part, below
from .pairs import Ambiguous, Pair, match, read_list, ways_in

_LISTS = dict(train=('train.txt', ), val=('val.txt', 'valid.txt', 'validation.txt'), test=('test.txt', ),
              all=('default.txt', ))
_LIST_FOLDERS = ('ImageSets/Segmentation', 'ImageSets', 'splits', 'lists', '.')
#: Only this many label maps of a part are read to see whether they are in colour.
_LOOKED_AT = 20
_HELP = ('Name the folders with --train-images DIR --train-annotations DIR, and --val-images DIR --val-annotations '
         'DIR or --val-share SHARE')


def find_segmentation(cfg, root, options, made):
    """Recognise a folder with data for segmentation, see `recognition.Kind`.

    Returns:
        A `Layout`, or None if the config stays as it is.

    Raises:
        ConfigError: An option has a wrong value.
        DataError: The data is not recognised, or can be read in several ways.
    """
    root = Path(root)
    if bad := [label for label in options.ignore_label if not 0 <= label <= IGNORED]:
        raise ConfigError(f'--ignore-label accepts labels from 0 to {IGNORED}, got {bad[0]}')
    if not root.is_dir() or not any(root.iterdir()):
        return None
    with made:
        layout = _Finder(cfg, root, options, made).find()
    if layout and options.ignore_label:
        _ignore(cfg, layout, sorted(set(options.ignore_label)))
    return layout


def seen_for_segmentation(root: Path) -> str:
    """Describe what a folder has for segmentation; '' if it has nothing."""
    if label_studio_masks(root):
        return 'Label Studio masks'
    try:
        pairs = [pair for way in ways_in(root)[1] for pair in way.values()]
    except Ambiguous:
        return ''
    return f'label maps in {below(pairs[0].maps, root)} for images in {below(pairs[0].images, root)}' if pairs else ''


class _Finder:

    def __init__(self, cfg, root, options, made):
        self.cfg, self.root, self.options, self.made = cfg, root, options, made
        self.name, self.notes, self.base, self.names = 'images and label maps', [], root, ()
        self.origins, self.source, self.is_coloured = {}, None, False

    def find(self):
        """Return the layout."""
        given = self.given()
        own = {} if given else self.in_place()
        if own and not self.options.palette:  # the only possible option is --ignore-label
            self.without_share()
            return Layout('layout of the config', self.root, {part: Part(*folders) for part, folders in own.items()},
                          notes=self.notes)
        if own:
            pairs = {part: self.match(*folders) for part, folders in own.items()}
        else:
            pairs = {**({} if {'train', 'val'} <= given.keys() else self.recognised(given)), **given}
        if not pairs and self.options.given:
            raise DataError(f'{self.root} has no images and label maps under known names. Found:\n'
                            f'{seen_in(self.root)}\n{_HELP}')
        if not pairs:  # missing files of the config are reported later
            return None
        parts = self.divided(pairs)
        palette = self.palette(parts)
        listed_names, source = names_beside([self.base, self.root, *(pair.images for pair, _ in parts.values())])
        names = self.names or (tuple(palette) if palette else listed_names)
        if not names and self.base.name.startswith('VOC20'):
            from mmseg.datasets import PascalVOCDataset
            names, source = PascalVOCDataset.METAINFO['classes'], None
        if palette:
            parts = self.in_numbers(parts, palette)
        return Layout(self.name, self.root, {part: self.part(part, *pair) for part, pair in parts.items()},
                      self.keep_names(names, None if palette or self.names else source), self.notes)

    def given(self):
        """Return the pairs that the options name."""
        found = {}
        for part in PARTS:
            folders = [self.options.path(part, kind, self.root) for kind in ('images', 'annotations')]
            if any(folders):
                if not all(folders):
                    raise ConfigError(f'--{part}-images and --{part}-annotations go together: set both')
                found[part] = self.match(*folders)
        return found

    def match(self, images, maps):
        """Return the pair of two folders that the options or the config name."""
        try:
            pair = match(images, maps)
        except Ambiguous as error:
            raise DataError(f'{error}. Move all but one kind elsewhere') from error
        if pair is None:
            raise DataError(f'no label map in {maps} has the name of an image in {images}; looked for '
                            f'{", ".join(MAP_SUFFIXES)}')
        return pair

    def in_place(self):
        """Return the folders of each part if all paths of the config exist."""
        found = {}
        for part, loader in zip(PARTS, LOADERS, strict=True):
            for dataset in datasets(self.cfg, [loader]):
                if not dataset.prefixes.get('seg_map_path'):
                    return {}
                folders = dataset.folder('img_path'), dataset.folder('seg_map_path')
                listed_in = [dataset.ann_file] if dataset.get('ann_file') else []
                if not all(path.exists() for path in (*folders, *listed_in)):
                    return {}
                found[part] = tuple(path.absolute() for path in folders)
        return found

    def recognised(self, given):
        """Return the pairs below the root."""
        if not given and (pairs := self.label_studio()):
            return pairs
        try:
            base, found = ways_in(self.root)
        except Ambiguous as error:
            if given:
                return {}
            raise DataError(f'{self.root} can be read in several ways: {error}. {_HELP}') from error
        if len(found) > 1 and not given:
            ways = [' and '.join(dict.fromkeys(f'{below(pair.images, self.root)} + {below(pair.maps, self.root)}'
                                               for pair in way.values())) for way in found]
            raise DataError(f'{self.root} can be read in several ways: {"; or ".join(ways)}. {_HELP}')
        if len(found) != 1:
            return {}
        self.base = base
        if self.base.name.startswith('VOC') or (self.base / 'SegmentationClass').is_dir():
            self.name = 'VOC'
        return found[0]

    def label_studio(self):
        """Combine the masks of Label Studio and return them as a pair."""
        masks = label_studio_masks(self.root)
        if not masks:
            return {}
        images, names, self.names, self.notes = combine_masks(self.root, masks, self.made)
        self.name = 'Label Studio masks'
        return {'': Pair(images, self.made.folder / 'maps', names, names, '', '.png', True)}

    def divided(self, pairs):
        """Return the pair of each part and the names of its images, None for all in the folder."""
        whole = pairs.pop('', None)
        parts = {part: (pair, pair.names if pair.is_listed else None) for part, pair in pairs.items()}
        if whole and 'train' not in parts:
            parts = {**self.by_lists(whole), **parts}
        if 'train' in parts and 'val' not in parts:
            pair, names = parts['train']
            names = names or pair.names
            held, share = hold_out(names, self.made, str(pair.images), '--val-images DIR and --val-annotations DIR',
                                   self.options.val_share)
            train, val = ([name for name in names if (name in held) == wanted] for wanted in (False, True))
            maps = below(pair.maps, self.root)
            self.origins.update(train=f'label maps in {maps}, {1 - share:.0%} of the images',
                                val=f'label maps in {maps}, {share:.0%} held out')
            parts.update(train=(pair, train), val=(pair, val))
        else:
            self.without_share()
        return parts

    def without_share(self):
        """Reject --val-share, because no images are held out."""
        self.options.refuse('--val-share', why=f'has no effect: {self.root} has validation data')

    def by_lists(self, pair):
        """Return the parts of a pair of folders that is divided by lists of images."""
        paths = {}
        for part, files in _LISTS.items():
            places = (self.base / folder / file for folder in _LIST_FOLDERS for file in files)
            if path := next((path for path in places if path.is_file()), None):
                paths[part] = path
        images = pair.with_map if self.name == 'VOC' else pair.names
        if not paths:
            return {'train': (pair, images if pair.is_listed or images != pair.names else None)}
        found = {part: read_list(path, pair.names) for part, path in paths.items()}
        self.origins.update({part: f'{below(pair.maps, self.root)}, by {below(path, self.root)}'
                             for part, path in paths.items()})
        whole = found.pop('all', None)
        if 'train' not in found:
            others = {name for names in found.values() for name in names}
            found['train'] = [name for name in whole or pair.with_map if name not in others]
        return {part: (pair, found[part]) for part in PARTS if found.get(part)}

    def palette(self, parts):
        """Return the palette for coloured label maps; {} if no label map is coloured and no palette is set."""
        given = self.options.palette
        path = self.root / Path(given).expanduser() if given else None
        if path and not path.is_file() and Path(given).expanduser().is_file():
            path = Path(given).expanduser()
        palette = read_palette(path) if path else {}
        coloured = ''
        for pair, names in parts.values():
            names = names or pair.with_map
            paths = [pair.map_of(name) for name in names[::max(len(names) // _LOOKED_AT, 1)]]
            for file, state in zip(paths, read_maps(paths, pair.maps), strict=True):
                if state.content and are_colours(state.content, palette):
                    coloured = coloured or file
        if coloured and not path:
            path = palette_beside([self.base, self.root, *(pair.maps for pair, _ in parts.values())])
            if not path:
                raise DataError(f'label maps are in colour, such as {coloured}, but no file next to them says which '
                                'colour is which class. Use --palette FILE with a line "name r g b" for each class')
        self.source, self.is_coloured = path, bool(coloured)
        return palette or (read_palette(path) if path else {})

    def in_numbers(self, parts, palette):
        """Return the parts with label maps of numbers instead of colours."""
        if not self.is_coloured:
            return parts
        found = {}
        for part, (pair, names) in parts.items():
            new = Pair(pair.images, self.made.folder / 'maps' / part, pair.names, pair.with_map, pair.ending, '.png')
            paths = {new.map_of(name).relative_to(self.made.folder).as_posix(): pair.map_of(name)
                     for name in names or pair.with_map}
            convert_colours(paths, palette, str(self.source), pair.maps, self.made, f'maps/{part}.json')
            found[part] = new, names
        self.notes.append(f'coloured label maps were converted by {self.source.name} into {self.made.folder / "maps"}')
        return found

    def part(self, part, pair, names):
        """Return a part of the layout."""
        dataset = next(iter(datasets(self.cfg, [f'{part}_dataloader'])), {})
        settings = dict(seg_map_suffix=pair.suffix)
        if dataset and dataset.reader == 'ImageFolderDataset':
            settings.update(image_ending=pair.ending)
            lines = names
        else:
            suffixes = {os.path.splitext(name)[1] for name in names or pair.names}
            if len(suffixes) > 1:
                raise DataError(f'{pair.images} has images of several kinds ({", ".join(sorted(suffixes))}), but '
                                f'{dataset.get("type")} reads only one: use one of the *_custom configs')
            settings.update(img_suffix=pair.ending + next(iter(suffixes), '.jpg'))
            lines = names and [name.removesuffix(settings['img_suffix']) for name in names]
        settings['ann_file'] = str(self.made.write_lines(f'{part}.txt', lines)) if lines is not None else ''
        return Part(pair.images, pair.maps, settings, len(pair.names if names is None else names),
                    origin=self.origins.get(part, ''))

    def keep_names(self, names, source):
        """Write the class names to where the data sets of the config read them, and return them."""
        if not names:
            return ()
        if source is None or source != self.root / 'classes.txt':
            path = self.made.write_lines('classes.txt', names)
            for dataset in datasets(self.cfg, LOADERS):
                if dataset.reader == 'ImageFolderDataset':
                    dataset['classes_file'] = str(path)
        return tuple(names)


def _ignore(cfg, layout, labels):
    """Make the data sets, heads, padding and metrics of a config ignore some labels."""
    for dataset in datasets(cfg, LOADERS):
        own = dataset.own_classes
        if dataset.reader == 'ImageFolderDataset':
            dataset['ignore_labels'] = labels
        elif own:  # mmseg itself ignores classes that are not named
            names = (dataset.get('metainfo') or {}).get('classes') or own
            kept = set(without_ignored(own, first_label(dataset), labels))
            names = tuple(name for name in names if name in kept)
            dataset['metainfo'] = dict(dataset.get('metainfo') or {}, classes=names)
            for head in heads_of_classes(cfg.model):
                head['num_classes'] = len(names)
        else:
            raise ConfigError(f'--ignore-label: the data set {dataset["type"]!r} cannot ignore labels. Use '
                              'ImageFolderDataset, as the *_custom configs do')
    leave_out_255(cfg)
    layout.notes.append(f'{"labels" if len(labels) > 1 else "label"} {listed(map(str, labels), 10)} '
                        f'{"are" if len(labels) > 1 else "is"} ignored')
    layout.classes = without_ignored(layout.classes, first_label(datasets(cfg, LOADERS)[0]), labels)
