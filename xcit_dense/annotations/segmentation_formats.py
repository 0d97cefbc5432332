"""Folders with data for segmentation: images and label maps."""
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

from .._utils.text import listed
from ..data.check.agreement import check_names
from ..data.datasets import LOADERS, datasets
from ..data.files import IGNORED, read_files, read_map
from ..data.folders import MAP_SUFFIXES, WORDS, seen_in
from ..data.label_maps import first_label, leave_out_255, without_ignored
from ..errors import ConfigError, DataError
from . import conversion
from .coco import folders_of
from .derived import hold_out
from .foreign import reject_foreign
from .label_files import find_label_files
from .label_studio import combine_masks, label_studio_masks
from .labelme_maps import draw_label_maps
from .pairs import JPEG, Pair, class_of_folder, match, read_list, ways_in
from .types import PARTS, Layout, Part, below

_LIST_FOLDERS = ('ImageSets/Segmentation', 'ImageSets', 'splits', 'lists', '.')
#: Only this many label maps of a part are read to see whether they are in colour.
_LOOKED_AT = 20
_HELP = ('Name the folders with --train-images DIR --train-annotations DIR, and --val-images DIR --val-annotations '
         'DIR or --val-share SHARE')


def find_segmentation(cfg, root, options, made):
    """Recognise a folder with data for segmentation, see `recognition.Kind`."""
    return _Finder(cfg, root, options, made).find()


def seen_for_segmentation(root: Path) -> str:
    """Describe what a folder has for segmentation; '' if it has nothing."""
    if label_studio_masks(root):
        return 'Label Studio masks'
    try:
        pairs = [pair for way in ways_in(root)[1] for pair in way.values()]
    except DataError:  # there is something, but it cannot be used as it is
        return ''
    return f'label maps in {below(pairs[0].maps, root)} for images in {below(pairs[0].images, root)}' if pairs else ''


class _Finder:

    def __init__(self, cfg, root, options, made):
        self.cfg, self.root, self.options, self.made = cfg, root, options, made
        self.name, self.notes, self.base, self.names = 'images and label maps', [], root, ()

    def find(self):
        """Return the layout; None if nothing is recognised and no option asks for it."""
        self.options.refuse('--instances', why='is only for detection')
        named = self.options.path('train', 'annotations', self.root)
        labelme = find_label_files('LabelMe', self.root, folders_of(named or self.root), self.options)
        given = self.given(labelme)
        is_whole = labelme and named and not given or {'train', 'val'} <= given.keys()
        pairs = {**({} if is_whole else self.recognised(given)), **given}
        if labelme and pairs:
            self.notes.append(f'not used: LabelMe in {below(labelme, self.root)}; to use it: --train-annotations DIR')
        elif labelme:
            self.name, (pairs, self.names, self.notes) = 'LabelMe', draw_label_maps(self.root, self.options, self.made)
        if not pairs:
            reject_foreign(self.root)
            if self.options.given:
                raise DataError(f'{self.root} has no images and label maps under known names. Found:\n'
                                f'{seen_in(self.root)}\n{_HELP}')
            return None  # missing files of the config are reported later
        parts = self.divided(pairs)
        folders = [self.base, self.root, *(pair.maps for pair in parts.values())]
        listed_names, source = conversion.names_beside([*folders[:2], *(pair.images for pair in parts.values())])
        palette, parts = self.in_numbers(parts, folders, listed_names)
        if self.options.class_name not in (None, *self.names):
            self.options.refuse('--class-name', why='is for masks in black and white, and these have other labels')
        names = given = self.names or tuple(palette) or listed_names
        if not names and self.base.name.startswith('VOC20'):
            from mmseg.datasets import PascalVOCDataset
            names = PascalVOCDataset.METAINFO['classes']
        if names and (names != listed_names or source != self.root / 'classes.txt'):
            file = str(self.made.write_lines('classes.txt', names))
            for dataset in datasets(self.cfg, LOADERS):
                if dataset.reader == 'ImageFolderDataset':
                    dataset['classes_file'] = file
                own = dataset.own_classes if given else None
                for finding in check_names(source or self.root, own, given, spelt=True):
                    if finding.severity == 'error':
                        raise DataError(finding.sentence)
        return Layout(self.name, self.root, {part: self.part(part, pair) for part, pair in parts.items()},
                      tuple(names), self.notes)

    def given(self, labelme):
        """Return the pairs that the options name, {} for LabelMe's files; of a palette alone, those of the config."""
        found = {}
        for part in PARTS:
            folders = [self.options.path(part, kind, self.root) for kind in ('images', 'annotations')]
            if any(folders):
                if not all(folders):
                    raise ConfigError(f'--{part}-images and --{part}-annotations go together: set both')
                found[part] = match(*folders)
                if found[part] is None and labelme:
                    return {}
                if found[part] is None:
                    raise DataError(f'no label map in {folders[1]} has the name of an image in {folders[0]}; looked '
                                    f'for {", ".join(MAP_SUFFIXES)}')
        for part, loader in zip(PARTS, LOADERS, strict=True) if self.options.palette and not found else ():
            for dataset in datasets(self.cfg, [loader]):
                folders = [dataset.folder(key).absolute() for key in ('img_path', 'seg_map_path')]
                is_there = dataset.prefixes.get('seg_map_path') and all(map(Path.is_dir, folders))
                if pair := match(*folders) if is_there else None:
                    found[part] = pair
        return found

    def recognised(self, given):
        """Return the pairs below the root."""
        if not given and (masks := label_studio_masks(self.root)):
            images, names, self.names, self.notes = combine_masks(self.root, masks, self.made)
            self.name = 'Label Studio masks'
            return {'': Pair(images, self.made.folder / 'maps', names, names, '', '.png', names)}
        try:
            base, found = ways_in(self.root)
        except DataError as error:
            if given:  # what the options do not name is divided
                return {}
            raise DataError(f'{error}. {_HELP}') from error
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

    def divided(self, pairs):
        """Return the pair of each part, with the images that are used."""
        whole = pairs.pop('', None)
        if whole and 'train' not in pairs:
            pairs = {**self.by_lists(whole), **pairs}
        self.options.choose_val(pairs, self.root)
        if 'train' not in pairs or 'val' in pairs:
            return pairs
        pair = pairs['train']
        names = pair.chosen or pair.names
        held, share = hold_out(names, self.made, str(pair.images), '--val-images DIR and --val-annotations DIR',
                               self.options.val_share, names)
        for part, is_held, words in (('train', False, f'{1 - share:.0%} of the images'),
                                     ('val', True, f'{share:.0%} held out')):
            pairs[part] = replace(pair, chosen=[name for name in names if (name in held) == is_held],
                                  origin=f'label maps in {below(pair.maps, self.root)}, {words}')
        return pairs

    def by_lists(self, pair):
        """Return the parts of a pair of folders that is divided by lists of images."""
        images = pair.with_map if self.name == 'VOC' else pair.names
        words_of = dict(WORDS, all=['default'])  # CVAT's list of all images
        paths = {part: path for part, words in words_of.items() if (path := next(
            (path for folder in _LIST_FOLDERS for word in words
             if (path := self.base / folder / f'{word}.txt').is_file()), None))}
        if not paths:
            return {'train': replace(pair, chosen=images if pair.chosen or images != pair.names else None)}
        found = {part: read_list(path, pair.names) for part, path in paths.items()}
        whole = found.pop('all', None) or pair.with_map
        if 'train' not in found:
            others = {name for names in found.values() for name in names}
            found = dict(train=[name for name in whole if name not in others], **found)
        maps = below(pair.maps, self.root)
        return {part: replace(pair, chosen=names, origin=f'{maps}, by {below(paths[part], self.root)}'
                              if part in paths else '') for part, names in found.items() if names}

    def black_and_white(self, parts, contents, names):
        """Return parts with labels instead of masks in black and white, unchanged if 0 and 1; None for others.

        Args:
            contents: What `read_map` returned for some of the masks.
            names: The class names in a file, if there are any.
        """
        labels = {label for content in contents for label, _ in content.get('labels', [(IGNORED, 0)])}
        jpeg = [pair.maps for pair in parts.values() if pair.suffix.lower().endswith(JPEG)]
        is_done, states = labels <= {0, 1} and not jpeg, {}
        may_be = jpeg or labels <= {0, 1, IGNORED} or {0, IGNORED} <= labels and len(labels) > conversion.SOFT
        if self.cfg.get('classes_from_data') and may_be and len(names) < 3 and not (names and is_done):
            for pair in parts.values():
                paths = [pair.map_of(name) for name in pair.chosen or pair.with_map]
                found = read_files(paths, conversion.read_black_and_white, 'black and white', pair.maps, name='masks')
                states.update(zip(paths, (state.content for state in found), strict=True))
        grey, values = (max((state[place] for state in states.values() if state), default=0) for place in (1, 2))
        if not all(states.values()) or not any(state[0] for state in states.values()) or (
                not jpeg and 0 < values < conversion.SOFT):
            if jpeg:
                raise DataError(f'the masks in {jpeg[0]} are JPEG, which changes labels, and not black and white: save '
                                'them as PNG')
            return None
        name = self.options.class_name or (names or [class_of_folder(next(iter(parts.values())).maps, self.root)])[-1]
        self.names = (names[0] if len(names) == 2 else 'background', name)
        self.notes.append(f'masks in black and white: the classes are {listed(self.names)}' + (
            '; --class-name gives another name' * (not names and not self.options.class_name)))
        if jpeg or grey:
            self.notes.append(f'masks are cut at half of white, as up to {grey:.1%} of the pixels of one are grey'
                              + ' (JPEG has a rim of grey; PNG has none)' * bool(jpeg))
        return parts if is_done else self.rewritten(
            parts, partial(conversion.write_maps, read=conversion.labels_of_mask, rule='black and white'))

    def in_numbers(self, parts, folders, listed_names):
        """Return the palette of an option or in some folders, which may be {}, and parts with numbers, not colours."""
        given = Path(self.options.palette).expanduser() if self.options.palette else None
        path = given and next((path for path in (self.root / given, given) if path.is_file()), self.root / given)
        palette, coloured, contents = conversion.read_palette(path) if path else {}, None, []
        for pair in parts.values():
            names = pair.chosen or pair.with_map
            paths = [pair.map_of(name) for name in names[::max(len(names) // _LOOKED_AT, 1)]]
            states = read_files(paths, read_map, 'maps', pair.maps, name='label maps')
            contents += [state.content for state in states if state.content]
            for file, state in zip(paths, states, strict=True):
                if state.content and conversion.are_colours(state.content, palette):
                    coloured = coloured or file
        path = path or coloured and conversion.palette_beside(folders)
        if not path and not self.names and (found := self.black_and_white(parts, contents, listed_names)):
            return {}, found
        if not coloured:
            return palette, parts
        if not palette:
            if not path:
                raise DataError(f'label maps are in colour, such as {coloured}, but no file next to them says which '
                                'colour is which class. Use --palette FILE with a line "name r g b" for each class')
            palette = conversion.read_palette(path)
        self.notes.append(f'coloured label maps were converted by {path.name} into {self.made.folder / "maps"}')
        return palette, self.rewritten(parts, partial(conversion.convert_colours, palette=palette, file=str(path)))

    def rewritten(self, parts, write):
        """Return parts with new label maps, which ``write`` makes of the old ones, see `conversion.write_maps`."""
        found = {}
        for part, pair in parts.items():
            found[part] = new = replace(pair, maps=self.made.folder / 'maps' / part, suffix='.png')
            names = {pair.map_of(name): new.map_of(name).relative_to(self.made.folder).as_posix()
                     for name in pair.chosen or pair.with_map}
            write(names, source=pair.maps, made=self.made, note=f'maps/{part}.json')
        return found

    def part(self, part, pair):
        """Return a part of the layout."""
        dataset = next(iter(datasets(self.cfg, [f'{part}_dataloader'])), {})
        settings, lines = dict(seg_map_suffix=pair.suffix), pair.chosen
        if dataset and dataset.reader == 'ImageFolderDataset':
            settings.update(image_ending=pair.ending)
        else:
            suffixes = {os.path.splitext(name)[1] for name in lines or pair.names}
            if len(suffixes) > 1:
                raise DataError(f'{pair.images} has images of several kinds ({", ".join(sorted(suffixes))}), but '
                                f'{dataset.get("type")} reads only one: use one of the *_custom configs')
            settings.update(img_suffix=pair.ending + next(iter(suffixes), '.jpg'))
            lines = lines and [name.removesuffix(settings['img_suffix']) for name in lines]
        settings['ann_file'] = str(self.made.write_lines(f'{part}.txt', lines)) if lines is not None else ''
        return Part(pair.images, pair.maps, settings, len(pair.names if lines is None else lines), origin=pair.origin)


def ignore(cfg, layout: Layout, labels):
    """Make data sets, heads, padding and metrics of a config ignore labels; `ConfigError`: it cannot ignore one."""
    if bad := [label for label in labels if not 0 <= label <= IGNORED]:
        raise ConfigError(f'--ignore-label accepts labels from 0 to {IGNORED}, got {bad[0]}')
    for dataset in datasets(cfg, LOADERS):
        if dataset.reader != 'ImageFolderDataset':
            raise ConfigError(f'--ignore-label: the data set {dataset["type"]!r} cannot ignore labels. Use '
                              'ImageFolderDataset, as the *_custom configs do')
        dataset['ignore_labels'] = labels
    leave_out_255(cfg)
    layout.notes.append(f'ignored labels: {listed(map(str, labels), 10)}')
    layout.classes = without_ignored(layout.classes, first_label(datasets(cfg, LOADERS)[0]), labels)
