"""Class names and colours in the files of annotation tools."""
import csv
import json
import re
from pathlib import Path

from ...errors import DataError
from ...text import read_text

#: Files with names and colours, and files with only names, in the order in which they are read.
_WITH_COLOURS = ('labelmap.txt', 'label_map.txt', 'class_dict.csv', 'classes.csv', 'palette.txt', 'palette.csv',
                 'palette.json', 'colormap.txt', 'colors.txt', 'colours.txt', 'label_colors.txt', 'class_colors.txt',
                 'colors.json', 'meta.json')
_NAMES_ALONE = ('classes.txt', 'codes.txt', 'class_names.txt', 'names.txt', 'label_names.txt', '_classes.csv',
                'data.yaml', 'data.yml', 'dataset.yaml')
_MOST = 255


def names_beside(folders) -> tuple:
    """Return the class names in a file in some folders, and the file; () and None if there is none.

    Raises:
        DataError: The file cannot be used.
    """
    for name in (*_NAMES_ALONE, *_WITH_COLOURS):
        for folder in folders:
            path = Path(folder, name)
            if path.is_file():
                names = _read_names(path)
                if names:
                    return names, path
    return (), None


def palette_beside(folders) -> Path | None:
    """Return the file with colours in some folders, or None."""
    paths = (Path(folder, name) for name in _WITH_COLOURS for folder in folders)
    return next((path for path in paths if path.is_file() and _entries(path)), None)


def read_palette(path) -> dict:
    """Return the colour (red, green, blue) of each class in a file by name, in the order of the file.

    Raises:
        DataError: It does not exist, has anything but a name and three numbers from 0 to 255 per line, or has a name
            or a colour twice.
    """
    if not Path(path).is_file():
        raise DataError(f'the palette {path} does not exist')
    entries = _entries(path)
    if not entries:
        raise DataError(f'{path} is not a palette: each line must be "name r g b", "r g b name", "name,r,g,b" or '
                        '"name:r,g,b::", with numbers from 0 to 255; JSON must have names and colours')
    names, colours = zip(*entries, strict=True)
    for words, values in (('name', names), ('colour', colours)):
        if twice := [value for place, value in enumerate(values) if value in values[:place]]:
            raise DataError(f'{path} has the {words} {twice[0]} twice')
    if len(names) > _MOST:
        raise DataError(f'{path} has {len(names)} classes, but label maps have room for only {_MOST}')
    return dict(entries)


def _read_names(path):
    if path.name in _WITH_COLOURS:
        return tuple(name for name, _ in _entries(path))
    try:
        text = read_text(path)
        if path.suffix in ('.yaml', '.yml'):
            import yaml
            content = yaml.safe_load(text)
            names = content.get('names') if isinstance(content, dict) else None
            names = [names[key] for key in sorted(names)] if isinstance(names, dict) else names or []
        elif path.suffix == '.csv':  # Roboflow's: pixel value and class
            rows = {int(row[0]): row[1].strip() for row in csv.reader(text.splitlines())
                    if len(row) > 1 and row[0].strip().isdecimal()}
            names = [rows.get(label, str(label)) for label in range(max(rows, default=-1) + 1)]
        else:
            names = [line.strip() for line in text.strip().splitlines()]
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f'{path} cannot be read: {error}') from error
    except Exception as error:  # yaml has its own error types
        raise DataError(f'{path} cannot be read: {error}') from error
    return tuple(map(str, names))


def _entries(path):
    """Return pairs of a name and a colour; none if any line is something else."""
    path = Path(path)
    try:
        text = read_text(path)
        if path.suffix == '.json':
            return _of_json(json.loads(text))
    except (OSError, ValueError) as error:
        raise DataError(f'{path} cannot be read: {error}') from error
    lines = [line.strip() for line in text.splitlines()]
    entries = [_of_line(line) for line in lines if line and not line.startswith('#')]
    if entries and entries[0] is None:  # the column titles
        entries = entries[1:]
    return entries if entries and all(entries) else []


def _of_line(line):
    numbers = r'(\d{1,3})[\s,;]+(\d{1,3})[\s,;]+(\d{1,3})'
    found = re.match(rf'^{numbers}[\s,;:]+(\S.*)$', line)
    if found:
        *colour, name = found.groups()
    else:  # CVAT has parts and actions after the colour
        found = re.match(rf'^(.*?\S)[\s,;:]+{numbers}\s*(?::.*|,.*)?$', line)
        if not found:
            return None
        name, *colour = found.groups()
    colour = tuple(map(int, colour))
    return (name.strip(' "\''), colour) if max(colour) < 256 else None


def _of_json(content):
    if isinstance(content, dict):
        inner = next((content[key] for key in ('classes', 'labels', 'palette') if key in content), None)
        if isinstance(inner, (list, dict)):
            return _of_json(inner)
        pairs = list(content.items())
    else:
        pairs = [(next((record[key] for key in ('name', 'title', 'label') if key in record), None),
                  next((record[key] for key in ('color', 'colour', 'rgb') if key in record), None))
                 for record in content if isinstance(record, dict)] if isinstance(content, list) else []
    entries = [(str(name), _colour(colour)) for name, colour in pairs if name is not None]
    return entries if entries and all(colour for _, colour in entries) else []


def _colour(value):
    if isinstance(value, str) and re.fullmatch(r'#[0-9a-fA-F]{6}', value):
        value = [int(value[i:i + 2], 16) for i in (1, 3, 5)]
    good = isinstance(value, (list, tuple)) and len(value) == 3 and all(
        isinstance(number, int) and 0 <= number < 256 for number in value)
    return tuple(value) if good else None
