"""The part of a run that the name of a file or folder means, and the folders below a data root."""
import os
import re
from pathlib import Path

from .writing import is_made

#: Words in names by the part that they mean, the usual ones first.
WORDS = dict(train=('train', 'training', 'trn'), val=('val', 'valid', 'validation'), test=('test', 'testing'))
_PARTS = {word: part for part, words in WORDS.items() for word in words}
_DEPTH, _MOST_FOLDERS = 3, 500


def part_of(path: Path, root: Path):
    """Return ``train``, ``val`` or ``test`` if the name of a file or folder, or of a folder above it, says so.

    The nearest name counts; a name with two of them is ignored.
    """
    names = [path.stem if path.suffix else path.name, *(folder.name for folder in path.parents if folder != root
                                                        and folder.is_relative_to(root))]
    for name in names if path != root else ():
        found = {_PARTS[word] for word in re.findall('[a-z]+', name.lower()) if word in _PARTS}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def folders_of(root: Path) -> list:
    """Return a folder and those below it, nearest first, except hidden ones and those that this program wrote."""
    found, level = [], [root]
    for _ in range(_DEPTH + 1):
        found += level
        level = [Path(entry) for folder in level for entry in _folders_in(folder)][:_MOST_FOLDERS]
    return found


def _folders_in(folder):
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.path for entry in entries if entry.is_dir()
                           and not entry.name.startswith(('.', '__MACOSX')))
    except OSError:  # not readable; missing files are reported later
        return []
    return [name for name in names if not is_made(name)]
