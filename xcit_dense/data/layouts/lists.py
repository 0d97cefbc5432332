"""Lists of images: those that a data set brings, and the images that are held out for validation."""
import hashlib
import json
from pathlib import Path

from ...errors import ConfigError, DataError, OutputError
from ...files import OwnFiles, atomic_write
from ...text import counted, listed
from ...weights.work_dirs import checkpoints_in
from ..files import read_json
from ..folders import names_in_list
from .names import TOOL

SHARE = 0.2
_DIVIDED = 'divided.json'
_ROOT = 'root.txt'


def read_list(path, images) -> list:
    """Return the images that a list names.

    Args:
        path: Of the list: a line begins with a path, a name or a name without its suffix.
        images: All images, relative to their folder.

    Raises:
        DataError: It names images that are not there.
    """
    known = {}
    for name in images:
        image = Path(name)
        for word in (image.stem, image.name, str(image.with_suffix('')), name):
            known[word] = name
    found, missing = [], []
    for line in names_in_list(path):
        word = line.split()[0].strip(',')
        tries = (line, word, Path(word).name, Path(word).stem)
        image = next((known[text] for text in tries if text in known), None)
        (missing if image is None else found).append(image or line)
    if missing:
        raise DataError(f'{path} names {counted(len(missing), "images")} that are not there: {listed(missing, 3)}')
    return list(dict.fromkeys(found))


def divide(images, root: Path, made, share=None) -> tuple:
    """Divide images into training and validation by their names alone; those that were divided before keep their part.

    Args:
        images: Their names.
        root: The folder of the data, by which it is known again.
        made: `Made`, which keeps what was divided.
        share: Of the images for validation; by default that of an earlier run, or `SHARE`.

    Returns:
        The names for training and for validation, in the order of ``images``, and the share.

    Raises:
        ConfigError: The share cannot be, or is another one than that of a training in the same work dir.
        DataError: There are too few images.
    """
    if share is not None and not 0 < share < 1:
        raise ConfigError(f'--val-share must be above 0 and below 1, not {share:g}')
    if len(images) < 2:
        raise DataError(f'{counted(len(images), "images")} cannot be divided into training and validation: give '
                        '--val-images and --val-annotations')
    known, before = _known(made.folder, root)
    if before is not None and share not in (None, before):
        if checkpoints_in(made.folder.parent):
            raise ConfigError(f'--val-share {share:g}: the training in {made.folder.parent} held out {before:g} of the '
                              'same images. Leave it out, or give another --work-dir')
        known, before = {}, None
    share = share or before or SHARE
    held = {name for name in images if known.get(name) == 'val'}
    number = min(max(round(share * len(images)), 1), len(images) - 1)
    new = sorted((name for name in images if name not in known), key=_draw)
    held.update(new[:max(number - len(held), 0)])
    parts = [[name for name in images if (name in held) == wanted] for wanted in (False, True)]
    made.write(_DIVIDED, json.dumps(dict(root=str(root), share=share, train=parts[0], val=parts[1])).encode())
    return *parts, share


def _known(folder, root):
    """Return the part of each image that was divided before, and the share that was held out."""
    try:
        content = read_json(folder / _DIVIDED)
        if content['root'] == str(root):
            return {name: part for part in ('train', 'val') for name in content[part]}, content['share']
    except (OSError, ValueError, KeyError, TypeError):  # nothing was divided
        pass
    return {}, None


def _draw(name):
    return hashlib.sha256(name.encode()).digest(), name


class Made:
    """Files that are made of the data, in a folder of their own. Use it as a context.

    All processes of a run write the same bytes, in any order: what is there already stays.

    Args:
        folder: The folder; it is made with the first file. Where it holds what was made of other data, such as that of
            a training whose checkpoint is tested on these, a folder in it is taken.
        root: The folder of the data.
    """

    def __init__(self, folder: Path, root: Path):
        self._root = f'{root}\n'.encode()
        if (folder / _ROOT).is_file() and not _holds(folder / _ROOT, self._root):
            folder = folder / hashlib.sha256(self._root).hexdigest()[:8]
        self.folder, self._own = folder, OwnFiles(folder, TOOL, overwrite=None)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._own.close()

    def write(self, name: str, data: bytes) -> Path:
        """Write a file and return its path.

        Raises:
            OutputError: A file is there that this program did not write.
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
        with atomic_write(file) as part:
            part.write_bytes(data)
        return file

    def write_lines(self, name: str, lines) -> Path:
        """Write a text of some lines and return its path."""
        return self.write(name, ''.join(f'{line}\n' for line in lines).encode())


def _holds(file, data):
    try:
        return file.stat().st_size == len(data) and file.read_bytes() == data
    except OSError:
        return False
