"""The folders below a data root."""
import os
from pathlib import Path

from .writing import is_made

_DEPTH, _MOST_FOLDERS = 3, 500


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
