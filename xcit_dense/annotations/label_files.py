"""Formats with a file of labels for each image, beside the images or in a folder of their own.

A new one is a module with ``read_labels`` and a row in `FORMATS`.
"""
import os
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from .._utils.files import drawn_in
from .._utils.text import counted, listed, with_slashes
from ..data.files import read_files
from ..data.folders import IMAGE_SUFFIXES, MAPS, OTHER_SUFFIXES, WORDS, names_in_list, part_in, part_of, plain
from ..errors import DataError
from . import kitti, labelme, voc
from .coco import folders_of
from .conversion import names_beside
from .objects import Picture, to_part, together, with_corners
from .types import below


class Format(NamedTuple):
    """A format with a file for each image.

    Attributes:
        suffix: The end of the names of its files.
        read: Called with the path of a file, returns what it says of its image, or None if it is of another format:
            ``image``, the name of the image, None if the format has none; ``size``, its width and height, or None;
            ``objects``, records as of `xcit_dense.annotations.objects.Picture`, and perhaps ``group``: those of one
            group and label are one object. Optional: ``path`` of the image; ``left_out``, the numbers of shapes that
            are not used, by kind; ``embedded``, whether the file holds the image. All must fit in JSON. It raises
            `xcit_dense.data.files.Unreadable`.
        lists: The folder, beside that of the files, of lists of their names by part; '' if there are none.
        image_in: Returns the image that a file holds, as bytes.
    """
    suffix: str
    read: Callable
    lists: str = ''
    image_in: Callable = None


FORMATS = {'Pascal VOC': Format('.xml', voc.read_labels, 'ImageSets/Main'),
           'LabelMe': Format('.json', labelme.read_labels, image_in=labelme.image_in),
           'KITTI': Format('.txt', kitti.read_labels)}
#: So many files of a folder are read to find out their format.
_PROBES = 3
#: Larger files (bytes) are no labels of one image, even if the image is in them.
_LARGEST = 2**27
_SHOWN = 5
_NO_CLASS = {labelme.IGNORE, labelme.BACKGROUND}


class Labelled(NamedTuple):
    """A file of labels, what `Format.read` returned of it, its image, and the part of the data that it is for."""
    file: Path
    content: dict
    image: Path
    part: str

    def objects(self, masks, width, height) -> list:
        """Return the objects of `Picture`; ``masks`` is whether boxes have masks too."""
        groups = {}
        for record in self.content['objects']:
            group = record.get('group')
            key = record['label_place'] if group is None else repr((record['label'], group))
            groups.setdefault(key, []).append({name: value for name, value in record.items() if name != 'group'})
        objects = [together(group, width, height) for group in groups.values()]
        return [*map(with_corners, objects)] if masks else objects

    def problem(self) -> str:
        """Return what is odd about the name or the size of the image in the file."""
        size, named = self.content['size'], Path(with_slashes(self.content['image'] or '')).stem
        if named != self.image.stem and self.content['image'] is not None:
            return (f'names the image {self.content["image"]!r}' if named else 'names no image') + (
                ': the image with the name of the file is used')
        return '' if not size or min(size) > 0 else (
            f'gives the image a size of {size[0]} x {size[1]}: that of the image is used')


def find_label_files(name: str, root: Path, folders, options) -> Path | None:
    """Return the first of some folders that has files of a format."""
    return next((folder for folder in folders if any(map(
        partial(_is_of, FORMATS[name]), _label_files_in(folder, FORMATS[name])[:_PROBES]))), None)


def _is_of(form, path):
    with suppress(Exception):  # of any type: nobody knows of which format it is
        content = form.read(path)
        return content and (content['objects'] or content['image'])


def read_parts(name: str, source: Path, root: Path, folders, options, made) -> dict:
    """Return the annotations of a data set by part, see `read_label_files`."""
    files, notes = read_label_files(name, root, options, made)
    names, parts = class_names(files, root, source), {}
    masks = any(record['segmentation'] for labelled in files for record in labelled.content['objects'])
    for labelled in files:
        size = labelled.content['size'] or (0, 0)
        parts.setdefault(labelled.part, []).append(Picture(
            labelled.image, partial(labelled.objects, masks), labelled.file, size if min(size) > 0 else None,
            labelled.problem()))
    source = Path(os.path.commonpath([labelled.file.parent for labelled in files]))
    return {part: to_part(source, root, pictures, names, notes if part == files[0].part else ())
            for part, pictures in parts.items()}


def class_names(files, root: Path, source: Path) -> tuple:
    """Return the names of the classes: in the order of a list that has them all, or else in alphabetical order."""
    used = {record['label'] for labelled in files for record in labelled.content['objects']} - _NO_CLASS
    lists = [names_in_list(file) for folder in (root, source) if (file := folder / 'labels.txt').is_file()]
    with suppress(DataError):  # of another kind
        lists.insert(0, names_beside((root, source))[0])
    for names in lists:
        if used and used <= set(names):  # CVAT lists the background too
            return tuple(dict.fromkeys(name for name in names
                                       if name in used or name not in _NO_CLASS | {'background'}))
    return tuple(sorted(used))


def read_label_files(name: str, root: Path, options, made) -> tuple:
    """Return each `Labelled` of a data set, and sentences on what a user might not expect.

    ``name`` is one of `FORMATS`; ``made`` writes images that only the files hold. `DataError`: files cannot be read or
    have no image, or an image has several.
    """
    form, found, notes, left_out, out = FORMATS[name], {}, [], Counter(), defaultdict(list)
    wrong, stems = [], set()
    given = {part: paths for part in WORDS if (paths := options.paths(part, 'annotations', root))}
    indices = {part: _index(path) for part in WORDS if (path := options.path(part, 'images', root))}
    whole = _index(root) if len(indices) < len(WORDS) else {}
    for part, base in [(part, path) for part, paths in given.items() for path in paths] or [(None, root)]:
        folders = folders_of(base, all_of_them=True)
        files = [path for folder in folders for path in _label_files_in(folder, form)]
        states = dict(zip(files, read_files(files, form.read, name, base, name=f'{name} files'), strict=True))
        stems.update(file.stem for file in files)
        written = {path for folder in folders for path in drawn_in(folder)}
        if not states.keys() <= written:  # those of people count, and predictions that nobody changed do not
            out['predictions'] += [below(file, root) for file in states if file in written]
            states = {file: state for file, state in states.items() if file not in written}
        # the folder of the training data alone may hold the other parts too
        parts = dict.fromkeys(states, part) if len(given) > 1 else _by_names(form, states, root, notes)
        images = {file: _image_of(file, state.content or {}, parts.get(file), indices.get(parts.get(file), whole))
                  for file, state in states.items()}
        # those in the folder of a file come first
        for file, image in sorted(images.items(), key=lambda pair: pair[1] is None or pair[1].parent != pair[0].parent):
            of, state, content = parts.get(file), states[file], states[file].content or {}
            if image in found and image.parent != file.parent and content.get('embedded'):
                image = None  # it is that of another file
            if state.fault:
                (wrong if image else out['files that cannot be read']).append(f'{file}: {state.value}')
            elif not state.content or not of:
                out['files that no list names'] += [below(file, root)] * bool(state.content)
            elif image is None and not content.get('embedded'):
                out['files without an image'].append(f'{below(file, root)} (it names {content["image"]!r})')
            elif image in found:
                raise DataError(f'the image {image} has two {name} files: {found[image].file} and {file}. Remove one, '
                                'or choose a folder that has only one of them: --train-annotations DIR')
            else:
                left_out.update(content.get('left_out'))
                found[image or file] = Labelled(file, content, image, of)
    if wrong:
        raise DataError(f'{counted(len(wrong), "files")} of {name} cannot be read. Mend or remove: '
                        f'{listed(wrong, _SHOWN)}')
    if not found:
        files = [file for files in out.values() for file in files]
        raise DataError(f'{counted(len(files), "files")} of {name} in {root}, but none has an image there: '
                        f'{listed(files, 3)}. Name the folder of the images with --train-images DIR')
    folders = {image.parent for image in found}
    out['images without a file of labels'] = sorted(
        below(path, root) for index in (whole, *indices.values()) for paths in index.values() for path in paths
        if path not in found and path.parent in folders and path.stem not in stems)
    notes += [f'left out {counted(len(files), kind)}: {listed(files, 3)}' for kind, files in out.items() if files]
    if left_out:
        notes.append('left out: ' + ', '.join(counted(number, kind) for kind, number in left_out.most_common()))
    return sorted(_with_images(form, found.values(), root, made), key=lambda labelled: labelled.image), notes


def _label_files_in(folder, form):
    return [path for path in _files_in(folder, form.suffix) if path.is_file() and path.stat().st_size <= _LARGEST]


def _files_in(folder, *suffixes):
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.name[0] != '.')


def _with_images(form, files, root, made):
    """Write the images that files hold; if others are on the disk, these too, so that all are in one folder."""
    if all(labelled.image for labelled in files):
        return files
    found = []
    for labelled in files:
        name = labelled.content['image'] if not labelled.image else labelled.image.name
        suffix = Path(name).suffix.lower() if Path(name).suffix.lower() in IMAGE_SUFFIXES else '.png'
        target = Path('images', below(labelled.file, root).lstrip('/')).with_suffix(suffix).as_posix()
        try:
            data = labelled.image.read_bytes() if labelled.image else form.image_in(labelled.file)
        except (ValueError, TypeError) as error:
            raise DataError(f'{labelled.file}: the image in it cannot be read: {error}') from error
        found.append(labelled._replace(image=made.write(target, data)))
    return found


def _by_names(form, files, root, notes):
    """Return the part of each file that is in one: by a list beside its folder, or by the names of its folders."""
    groups, parts = {}, {}
    for file in files:
        base = next((folder for folder in file.parents if form.lists and folder.is_relative_to(root)
                     and (folder.parent / form.lists).is_dir()), None)
        groups.setdefault(base, []).append(file)
    for base, members in groups.items():
        names = {word: file for file in members if base
                 for word in (file.stem, file.relative_to(base).with_suffix('').as_posix())}
        paths = {part: path for part, words in dict(WORDS, all=('trainval', 'default')).items() if base
                 for word in words if (path := base.parent / form.lists / f'{word}.txt').is_file()}
        for part, path in paths.items():
            tries = [(line.strip('"'), line.split()[0], Path(line.split()[0]).stem) for line in names_in_list(path)]
            found = [next((names[word] for word in words if word in names), None) for words in tries]
            if missing := found.count(None):
                notes.append(f'left out {counted(missing, "names")} without a file of labels in {below(path, root)}')
            for file in filter(None, found):
                parts.setdefault(file, 'train' if part == 'all' else part)
        if paths and parts.keys().isdisjoint(members):
            raise DataError(f'{listed(below(path, root) for path in paths.values())}: no name there is that of a file '
                            f'in {below(base, root)}. Write one name per line, without a suffix')
        if not paths:
            parts.update({file: part_of(file.parent, root) or 'train' for file in members})
    return parts


def _index(top):
    """Return the images below a folder, but for pictures of predictions, by their names without the suffix."""
    found, folders = {}, folders_of(top, all_of_them=True)
    drawn = {path for folder in folders for path in drawn_in(folder)}
    for path in (path for folder in folders for path in _files_in(folder, *IMAGE_SUFFIXES, *OTHER_SUFFIXES)):
        if path not in drawn:
            found.setdefault(path.stem, []).append(path)
    return found


def _image_of(file, content, part, index):
    """Return the image of a file or None: in its folder, or where it says, or else that with the most similar path."""
    named = Path(with_slashes(content.get('image') or ''))

    def unlikeness(path):
        steps = zip(path.with_suffix('').parts[::-1], file.with_suffix('').parts[::-1], strict=False)
        same = next((number for number, (a, b) in enumerate(steps) if a != b), 0)
        ahead = sum(a == b for a, b in zip(path.parts, file.parts, strict=False))
        return path.parent != file.parent, path.name != named.name, plain(path.parent.name) in MAPS, -same, -ahead

    images = [path for path in index.get(file.stem) or index.get(named.stem) or ()
              if part_in(path.parent.name)[0] in (part, '', None) or path.parent == file.parent]
    best = min(images, key=unlikeness, default=None)
    if best is not None and best.parent == file.parent:
        return best
    for path in (named, *([content.get('path') or ''] if best is None else ())):
        stated = (file.parent / path).resolve()
        if stated.suffix.lower() in IMAGE_SUFFIXES and stated.is_file():
            return next((path for path in images if stated.samefile(path)), stated)
    return best
