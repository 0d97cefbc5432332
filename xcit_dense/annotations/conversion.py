"""Label maps converted to one number per pixel: from colours, by a palette, and from black and white."""
import csv
import hashlib
import io
import json
import re
from pathlib import Path

import numpy as np
import yaml
from PIL import Image

from .._utils.files import read_text
from .._utils.text import counted, listed
from ..data.files import FORMATS, Unreadable, read_files
from ..errors import DataError
from .derived import Made

#: Files with names and colours, and files with only names, in the order in which they are read.
_WITH_COLOURS = ('labelmap.txt', 'label_map.txt', 'class_dict.csv', 'classes.csv', 'palette.txt', 'palette.csv',
                 'palette.json', 'colormap.txt', 'colors.txt', 'colours.txt', 'label_colors.txt', 'class_colors.txt',
                 'colors.json')
_NAMES_ALONE = ('classes.txt', 'codes.txt', 'class_names.txt', 'names.txt', 'label_names.txt', '_classes.csv',
                'data.yaml', 'data.yml', 'dataset.yaml')
_MOST = 255
#: Black and white of JPEG may be off by so much. Masks with so many values between have soft edges, not classes.
_RIM, SOFT = 32, 16
#: So many files and colours are named in an error.
_SHOWN = 3


def names_beside(folders) -> tuple:
    """Return the class names in a file in some folders, and the file, or () and None; `DataError`: it is unusable."""
    paths = (Path(folder, name) for name in (*_NAMES_ALONE, *_WITH_COLOURS) for folder in folders)
    return next(((names, path) for path in paths if path.is_file() and (names := _read_names(path))), ((), None))


def palette_beside(folders) -> Path | None:
    """Return the file with colours in some folders, or None."""
    paths = (Path(folder, name) for name in _WITH_COLOURS for folder in folders)
    return next((path for path in paths if path.is_file() and _entries(path)), None)


def read_palette(path) -> dict:
    """Return the colour (red, green, blue) of each class in a file by name, in the order of the file.

    `DataError`: a line is anything but a name and three numbers from 0 to 255, or has a name or a colour once more.
    """
    if not (entries := _entries(Path(path))):
        raise DataError(f'{path} is not a palette: each line must be "name r g b", "r g b name", "name,r,g,b" or '
                        '"name:r,g,b::", with numbers from 0 to 255; JSON must be {"name": [r, g, b]}')
    names, colours = zip(*entries, strict=True)
    for words, values in (('name', names), ('colour', colours)):
        if twice := [value for place, value in enumerate(values) if value in values[:place]]:
            raise DataError(f'{path} has the {words} {twice[0]} twice')
    if len(names) > _MOST:
        raise DataError(f'{path} has {len(names)} classes, but label maps have room for only {_MOST}')
    return dict(entries)


def _read(path):
    """Return the content of a file: lists and dicts of JSON and YAML, rows of CSV with class numbers, other lines."""
    try:
        text = read_text(path)
        if path.suffix == '.json':
            return json.loads(text)
        if path.suffix in ('.yaml', '.yml'):
            return yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f'{path} cannot be read: {getattr(error, "strerror", None) or error}') from error
    return [line.strip() for line in text.strip().splitlines()]


def _read_names(path):
    if path.name in _WITH_COLOURS:
        return tuple(name for name, _ in _entries(path))
    names = _read(path)
    if path.suffix in ('.yaml', '.yml'):
        names = names.get('names') if isinstance(names, dict) else None
        names = [names[key] for key in sorted(names)] if isinstance(names, dict) else names or ()
    elif path.suffix == '.csv':  # Roboflow's: titles, then pixel value and class
        try:
            rows = {int(row[0]): row[1].strip() for row in csv.reader(names)
                    if len(row) == 1 or row and row[0].strip().isdecimal()}
            names = [rows.pop(label, str(label)) for label in range(min(max(rows, default=-1), _MOST) + 1)]
        except (csv.Error, IndexError, ValueError) as error:
            raise DataError(f'{path} must have a label, a comma and a class name in each row: {error}') from error
        if rows:
            raise DataError(f'{path} has the label {max(rows)}, but the highest one is {_MOST}')
    return tuple(map(str, names))


def _entries(path):
    """Return pairs of a name and a colour; none if any line is something else."""
    content = _read(path)
    if isinstance(content, dict):
        entries = list(content.items())
    else:
        entries = [_of_line(line) for line in (content if isinstance(content, list) else ())
                   if isinstance(line, str) and line and not line.startswith('#')]
        if entries and entries[0] is None:  # the column titles
            entries = entries[1:]
    good = all(entry and isinstance(entry[1], list) and len(entry[1]) == 3
               and all(isinstance(number, int) and 0 <= number < 256 for number in entry[1]) for entry in entries)
    return [(name, tuple(colour)) for name, colour in entries] if good else []


def _of_line(line):
    numbers = r'(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})'
    if found := re.match(rf'^{numbers}[\s,;:]+(\S.*)$', line):
        *colour, name = found.groups()
    elif found := re.match(rf'^(.*?\S)[\s,;:]+{numbers}\s*(?::.*|,.*)?$', line):  # CVAT has parts and actions too
        name, *colour = found.groups()
    else:
        return None
    return name.strip(' "\''), list(map(int, colour))


def convert_colours(names: dict, palette: dict, file: str, source: Path, made: Made, note: str):
    """Write label maps whose labels are the indices of their colours in a palette, the colours by name.

    Args:
        file: The file of the palette, for errors, as when a pixel has a colour that is not in the palette.
        names, source, made, note: As for `write_maps`.
    """
    colours = [red << 16 | green << 8 | blue for red, green, blue in palette.values()]
    table, known = np.full(1 << 24, 255, np.uint8), np.zeros(1 << 24, bool)
    table[colours], known[colours] = range(len(colours)), True

    def convert(path):
        with Image.open(path, formats=FORMATS) as image:
            pixels = np.asarray(image.convert('RGB')).astype(np.uint32)
        codes = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
        wrong, amounts = np.unique(codes[~known[codes]], return_counts=True)
        if len(wrong):
            words = [f'{code >> 16, code >> 8 & 255, code & 255} ({counted(amount, "pixels")})' for amount, code in
                     sorted(zip(amounts.tolist(), wrong.tolist(), strict=True), reverse=True)]
            raise Unreadable(f'{counted(len(words), "colours")} missing in {file}: {listed(words, _SHOWN)}')
        return table[codes]

    if wrong := write_maps(names, convert, list(palette.items()), source, made, note):
        raise DataError(f'{counted(len(wrong), "label maps")} cannot be converted: {listed(wrong, _SHOWN)}. Add the '
                        'colours to your own palette (--palette FILE). Colours between two others come from masks that '
                        'were resized or saved as JPEG')


def write_maps(names: dict, read, rule, source: Path, made: Made, note: str) -> list:
    """Write label maps that are made of one file each, again only if the file, the rule or the label map changed.

    Returns the files that cannot be used, each with the reason.

    Args:
        names: By the path of a file, the name of its label map below the folder of ``made``.
        read: Called with the path, returns the labels (H, W).
        rule: What else the labels depend on; it is written into the file ``note`` as JSON.
        source: The folder of the files.
    """
    names = {str(Path(path).absolute()): name for path, name in names.items()}
    # a rule that replaces another one is written anew: then the results from before it are not used either
    written = made.write_json(note, rule).stat().st_mtime_ns
    kind = f'maps {hashlib.sha256(repr([rule, str(made.folder), written]).encode()).hexdigest()}'

    def write(path):
        made.write(names[path], as_png(read(path)))

    states = read_files(list(names), write, kind, source, name='label maps')
    deleted = [path for path, state in zip(names, states, strict=True)
               if not state.fault and not (made.folder / names[path]).is_file()]
    read_files(deleted, write, kind, source, use_cache=False, name='label maps')
    return [f'{path} ({state.value or "it does not exist"})'
            for path, state in zip(names, states, strict=True) if state.fault]


def read_black_and_white(path) -> list | None:
    """Return whether a mask in black and white has white, the share of pixels between, and how many values these have.

    None for others: soft edges, or the rim that JPEG leaves, may have 5 percent of the pixels.
    """
    pixels, is_jpeg = _grey(path)
    between = pixels[(pixels > _RIM * is_jpeg) & (pixels < 255 - _RIM * is_jpeg)]
    return [bool(pixels.max() > 127), between.size / pixels.size, len(np.unique(between))] if (
        between.size <= 0.05 * pixels.size) else None


def labels_of_mask(path) -> np.ndarray:
    """Return the labels (H, W) of a mask in black and white: 1 where it is brighter than half of white."""
    return (_grey(path)[0] > 127).astype(np.uint8)


def _grey(path):
    """Return the grey values (H, W) of a picture, and whether it is JPEG; in colour, those of no mask."""
    with Image.open(path, formats=FORMATS) as image:
        pixels, is_jpeg = np.asarray(image.convert('RGB')), image.format == 'JPEG'
    pixels = pixels * 255 if pixels.max() == 1 else pixels  # 0 and 1
    low, high = pixels.min(2), pixels.max(2)
    return np.where(high - low > _RIM * is_jpeg, 127, high), is_jpeg


def are_colours(content: dict, palette: dict) -> bool:
    """Whether a label map, as `read_map` returns it, has the colours of a palette and not class numbers.

    Grey values may be both: they are colours if one of them is not a class number, as with 0 and 255.
    """
    if 'labels' not in content:
        return content['mode'] in ('RGB', 'RGBA')
    labels = [label for label, _ in content['labels']]
    return (content['mode'] in ('L', '1') and any(label >= len(palette) for label in labels)
            and {(label, ) * 3 for label in labels} <= set(palette.values()))


def as_png(labels) -> bytes:
    """Return an array (H, W) of labels as a PNG file."""
    data = io.BytesIO()
    Image.fromarray(labels.astype(np.uint8)).save(data, 'PNG')
    return data.getvalue()
