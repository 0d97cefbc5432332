"""Files that the program derives from data and writes into its own folder."""
import hashlib
import json
import os
from pathlib import Path

from ...errors import OutputError
from ...files import RECORD, OwnFiles, atomic_write
from ...weights.files import checkpoints_in

#: The name of the writer in the record of the folder.
_TOOL = 'place_data'
_ROOT = 'root.txt'


class KeptError(OutputError):
    """A file of a training would change."""


class Made:
    """Files that are derived from the data, in their own folder. Use it as a context manager.

    All processes of a run write the same bytes, in any order: existing files stay.

    Args:
        folder: The folder; it is created with the first file. If it has files from other data, such as that of a
            training whose checkpoint is now tested on this data, a folder in it is used.
        root: The folder of the data.
        keep: Whether to change no file in ``folder`` if a training saved checkpoints next to it.
        aside: Whether to use a folder in ``folder`` in any case.

    Attributes:
        folder: The folder that is written into.
        work_dir: The work dir of the run or training that ``folder`` is for.
        earlier: Folders that may have files from before, nearest first.
    """

    def __init__(self, folder: Path, root: Path, keep: bool = False, aside: bool = False):
        self.work_dir, self.earlier = folder.parent, [folder]
        self._root = f'{os.path.realpath(root)}\n'.encode()
        elsewhere = (folder / _ROOT).is_file() and not _holds(folder / _ROOT, self._root)
        self._keep = keep and not elsewhere and checkpoints_in(self.work_dir)
        if aside or elsewhere:
            folder = folder / hashlib.sha256(self._root).hexdigest()[:8]
        if elsewhere:
            self.earlier.insert(0, folder)
        self.folder, self._own = folder, OwnFiles(folder, _TOOL, overwrite=None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._own.close()

    def write(self, name: str, data: bytes) -> Path:
        """Write a file and return its path.

        Raises:
            KeptError: It would change what a training wrote.
            OutputError: The file exists and was not written by this program, or cannot be written.
        """
        file = self.folder / name
        if _holds(file, data):
            return file
        if self._keep:
            raise KeptError(f'{file} belongs to a training')
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
            raise OutputError(f'cannot write {file}: {error.strerror}. Use another --work-dir') from error
        return file

    def write_lines(self, name: str, lines) -> Path:
        """Write a text file with these lines and return its path."""
        return self.write(name, ''.join(f'{line}\n' for line in lines).encode())

    def write_json(self, name: str, content) -> Path:
        """Write a JSON file and return its path."""
        return self.write(name, json.dumps(content).encode())


def is_made(folder) -> bool:
    """Whether a folder was written by `Made`."""
    try:
        return _TOOL in json.loads(Path(folder, RECORD).read_text())
    except (OSError, ValueError, TypeError):
        return False


def folder_of_training(checkpoint):
    """Return the folder where the training of a checkpoint stored which images it held out, or None.

    Args:
        checkpoint: The checkpoint file, or the work dir.
    """
    folder = Path(checkpoint) if Path(checkpoint).is_dir() else Path(checkpoint).parent
    return folder / 'data' if is_made(folder / 'data') else None


def _holds(file, data):
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False
