"""Files that the program makes of data, in a folder of its own."""
import json
from pathlib import Path

from ...errors import OutputError
from ...files import OwnFiles, atomic_write
from .names import TOOL


def write_json(folder: Path, **contents):
    """Write ``NAME.json`` for each content.

    All processes of a run write the same bytes, in any order: what is there already stays.

    Args:
        folder: Where to.
        **contents: By name, what JSON can hold.

    Raises:
        OutputError: A file is there that this program did not write.
    """
    with OwnFiles(folder, TOOL, overwrite=None) as own:
        for name, content in contents.items():
            data, file = json.dumps(content).encode(), folder / f'{name}.json'
            if _holds(file, data):
                continue
            try:
                own.claim(file.name)
            except OutputError:
                if _holds(file, data):  # another process was faster
                    continue
                raise
            with atomic_write(file) as part:
                part.write_bytes(data)


def _holds(file, data):
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False
