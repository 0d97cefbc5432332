"""Files that the program derives from data and writes into its own folder, and which images are held out."""
import hashlib
import json
import os
import re
from contextlib import suppress
from pathlib import Path

from .._utils.files import RECORD, OwnFiles, atomic_write
from .._utils.text import counted
from ..data.datasets import dicts_in
from ..data.files import read_json
from ..errors import ConfigError, DataError, OutputError, XCiTDenseError
from ..weights.contents import config_of_checkpoint, run_of
from ..weights.files import checkpoints_in, read_notes
from ..weights.read import read_checkpoint

_ROOT, _DIVIDED = 'root.txt', 'divided.json'
#: The share of images for validation by default.
VAL_SHARE = 0.2


class KeptError(OutputError):
    """A file of a training would change."""


class Made(OwnFiles):
    """Files that are derived from the data, in their own folder.

    All processes of a run write the same bytes, in any order: existing files stay.

    Args:
        folder: The folder; it is created with the first file. If it has files from other data, such as that of a
            training whose checkpoint is now tested on this data, a folder in it is used.
        root: The folder of the data.
        keep: Whether to change no file in ``folder`` if a training saved checkpoints next to it.
        aside: Whether to use a folder in ``folder`` in any case.

    Attributes:
        work_dir: The work dir of the run or training that ``folder`` is for.
        earlier: Folders that may have files from before, that of the training last.
        share: The share of the images that is held out, None if none are.
    """

    def __init__(self, folder: Path, root: Path, keep: bool = False, aside: bool = False):
        self.work_dir, training, self.share = folder.parent, folder, None
        self._root = f'{os.path.realpath(root)}\n'.encode()
        elsewhere = (folder / _ROOT).is_file() and not _holds(folder / _ROOT, self._root)
        self._keep = keep and not elsewhere and checkpoints_in(self.work_dir)
        if aside or elsewhere:
            folder = folder / hashlib.sha256(self._root).hexdigest()[:8]
        self.earlier = [folder, training]
        super().__init__(folder, 'place_data', overwrite=None)

    def write(self, name: str, data: bytes) -> Path:
        """Write a file and return its path.

        `KeptError`: it would change what a training wrote. `OutputError`: others wrote it, or its folder is read-only.
        """
        file = self.folder / name
        if _holds(file, data):
            return file
        if self._keep:
            raise KeptError(f'{file} belongs to a training')
        if name != _ROOT:
            self.write(_ROOT, self._root)
        try:
            self.claim(name)
        except OutputError:
            if _holds(file, data):  # another process was faster
                return file
            raise
        with atomic_write(file) as part:
            part.write_bytes(data)
        return file

    def write_lines(self, name: str, lines) -> Path:
        """Write a text file with these lines and return its path."""
        return self.write(name, ''.join(f'{line}\n' for line in lines).encode())

    def write_json(self, name: str, content) -> Path:
        """Write a JSON file and return its path."""
        return self.write(name, json.dumps(content).encode())


def is_made(folder) -> bool:
    """Whether a folder was written by `Made`."""
    return all(os.path.isfile(os.path.join(folder, name)) for name in (_ROOT, RECORD))  # False if it is unreadable


def folder_of_training(checkpoint):
    """Return the folder where the training of a checkpoint file or work dir stored which images it held out, or None.

    For a copy of the file elsewhere, that is in the work dir that it names, if the same run is there.
    """
    folder = Path(checkpoint) if Path(checkpoint).is_dir() else Path(checkpoint).parent
    if not is_made(folder / 'data') and Path(checkpoint).is_file():
        with suppress(XCiTDenseError):  # of another format, or damaged: whoever loads it says so
            content = read_checkpoint(checkpoint)
            work_dir = config_of_checkpoint(content).get('work_dir') or folder
            folder = work_dir if (notes := read_notes(work_dir)) and notes.run == run_of(content) else folder
    return Path(folder, 'data') if is_made(Path(folder, 'data')) else None


def follow_work_dir(cfg, folder: Path):
    """Let the config of a training whose work dir was moved name its files in ``folder``, where they are now."""
    for node in dicts_in([*cfg.values()]) if is_made(folder) else ():
        for key, value in node.items():
            parent, _, name = value.rpartition('/data/') if isinstance(value, str) else ('', '', '')
            if os.path.isabs(parent) and not os.path.exists(value) and (folder / name).exists():
                node[key] = str((folder / name).absolute())


def _holds(file, data):
    return file.is_file() and file.stat().st_size == len(data) and file.read_bytes() == data


def hold_out(images, made: Made, source: str, fix: str, share, judged) -> tuple:
    """Return which images are for validation, a set of names chosen only by the names, and their share.

    Copies of an image that Roboflow augmented stay together. Images that were divided before, in data with these names,
    keep their part. `ConfigError` or `DataError` say that the share is out of range or differs from that of a training
    in the same work dir, or that there are too few images.

    Args:
        made: Stores the split.
        source, fix: Where the images come from, and the options that name validation data, for errors.
        share: None for that of an earlier run, or `VAL_SHARE`.
        judged: The images with objects, which are divided separately because a model can only be evaluated on them.
    """
    if share is not None and not 0 < share < 1:
        raise ConfigError(f'--val-share must be above 0 and below 1, not {share:g}')
    known, before = _known(made, images)
    if before is not None and share not in (None, before):
        if checkpoints_in(made.work_dir):
            raise ConfigError(f'--val-share {share:g}: the training in {made.work_dir} held out {before:g} of the same '
                              'images. Omit it, or use another --work-dir')
        known = {}
    made.share = share = share or before or VAL_SHARE
    if (held := _draw(images, known, share, judged)) is None:
        raise DataError(f'{source} has only {counted(len(judged), "images")} with annotations, too few for training '
                        f'and validation. Name other images for validation with {fix}')
    parts = {part: [name for name in images if (name in held) == (part == 'val')] for part in ('train', 'val')}
    made.write_json(_DIVIDED, dict(share=share, **parts))
    return held, share


def _known(made, images):
    """Return the part of each image in an earlier split, and the share that was held out."""
    images = set(images)
    for folder in made.earlier:
        with suppress(OSError, ValueError, KeyError, TypeError):  # nothing was divided
            content = read_json(folder / _DIVIDED)
            if known := {name: part for part in ('train', 'val') for name in content[part] if name in images}:
                return known, float(content['share'])
    return {}, None


def _draw(images, known, share, judged):
    """Return the names of the images for validation, None if there are too few."""
    judged, groups = set(judged), {}
    for name in images:  # copies such as a_jpg.rf.0123abcd.jpg stay with the image that they were made from
        groups.setdefault(re.sub(r'\.rf\.[0-9A-Za-z]+(?=\.\w+$)', '', name), []).append(name)
    held = []
    for is_judged in (False, True):
        origins = [origin for origin, names in groups.items() if judged.isdisjoint(names) != is_judged]
        number = round(share * len(origins))
        if is_judged:
            if len(origins) < 2:
                return None
            number = min(max(number, 1), len(origins) - 1)
        before = {origin: {known.get(name) for name in groups[origin]} - {None} for origin in origins}
        kept = [origin for origin in origins if 'val' in before[origin]]
        new = sorted((origin for origin in origins if not before[origin]),
                     key=lambda origin: hashlib.sha256(origin.encode()).digest())
        held += kept + new[:max(number - len(kept), 0)]
    return {name for origin in held for name in groups[origin]}
