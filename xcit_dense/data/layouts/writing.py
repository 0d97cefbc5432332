"""Files that the program makes of data, in a folder of its own."""
import hashlib
import json
import os
from pathlib import Path

from ...errors import OutputError
from ...files import RECORD, OwnFiles, atomic_write

#: Whose name stands in the record of the folder.
_TOOL = 'place_data'
_ROOT = 'root.txt'


class Made:
    """Files that are made of the data, in a folder of their own. Use it as a context.

    All processes of a run write the same bytes, in any order: what is there already stays.

    Args:
        folder: The folder; it is made with the first file. Where it holds what was made of other data, such as that of
            a training whose checkpoint is tested on these, a folder in it is taken.
        root: The folder of the data.

    Attributes:
        folder: The folder that is written into.
        work_dir: That of the run or training that ``folder`` is for.
        earlier: Folders that may hold what was made before, the nearest first.
    """

    def __init__(self, folder: Path, root: Path):
        self.work_dir, self.earlier = folder.parent, [folder]
        self._root = f'{os.path.realpath(root)}\n'.encode()
        if (folder / _ROOT).is_file() and not _holds(folder / _ROOT, self._root):
            folder = folder / hashlib.sha256(self._root).hexdigest()[:8]
            self.earlier.insert(0, folder)
        self.folder, self._own = folder, OwnFiles(folder, _TOOL, overwrite=None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._own.close()

    def write(self, name: str, data: bytes) -> Path:
        """Write a file and return its path.

        Raises:
            OutputError: A file is there that this program did not write, or nothing can be written.
        """
        file = self.folder / name
        if _holds(file, data):
            return file
        if name != _ROOT:
            self.write(_ROOT, self._root)
        try:
            self._own.claim(name)
        except OutputError:
            if _holds(file, data):  # another process was faster
                return file
            raise
        try:
            with atomic_write(file) as part:
                part.write_bytes(data)
        except OSError as error:
            raise OutputError(f'cannot write {file}: {error.strerror}. Give another --work-dir') from error
        return file

    def write_lines(self, name: str, lines) -> Path:
        """Write a text of some lines and return its path."""
        return self.write(name, ''.join(f'{line}\n' for line in lines).encode())

    def write_json(self, name: str, content) -> Path:
        """Write what JSON can hold and return the path."""
        return self.write(name, json.dumps(content).encode())


def is_made(folder) -> bool:
    """Whether a folder holds what `Made` wrote."""
    try:
        return _TOOL in json.loads(Path(folder, RECORD).read_text())
    except (OSError, ValueError, TypeError):
        return False


def folder_of_training(checkpoint):
    """Return the folder where the training of a checkpoint noted which images it held out, None where it did not.

    Args:
        checkpoint: Its file, or the work dir.
    """
    folder = Path(checkpoint) if Path(checkpoint).is_dir() else Path(checkpoint).parent
    return folder / 'data' if is_made(folder / 'data') else None


def _holds(file, data):
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False
