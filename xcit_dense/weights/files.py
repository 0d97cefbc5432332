"""Checkpoints on the disk: which kind a file is, whether it is damaged, and which ones a work dir has."""
import json
import logging
import os
import zipfile
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mmengine.logging import print_log

from .._utils.files import atomic_write, lies_within
from .._utils.processes import is_first_of_any_launcher
from .._utils.text import counted, first_line
from ..errors import CheckpointError

#: How a file begins that torch wrote before version 1.6; it is a pickle, but not every pickle is such a file.
_OLD_TORCH = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'

#: The kinds of file that `xcit_dense.weights.read_checkpoint` reads.
CHECKPOINT_KINDS = ('torch', 'safetensors', 'pickle')
#: The file of a work dir that names its newest checkpoint; the name is mmengine's.
POINTER = 'last_checkpoint'
#: The file of a work dir that holds the `Notes` of its run.
NOTES = '.checkpoints'


def kind_of_file(path) -> str:
    """Return one of `CHECKPOINT_KINDS`, from the first bytes of the file, or describe what else it is."""
    with open(path, 'rb') as file:
        head = file.read(512)
    if head[4:9] == b'\0\0\0\0{':  # eight bytes of length, of which the first four vary; then the header
        return 'safetensors'
    if str(path).lower().endswith('.onnx') and head.startswith(b'\x08'):  # the first field of every such file
        return 'an ONNX file'
    if head.startswith(b'PK\x03\x04'):
        try:
            with zipfile.ZipFile(path) as file:
                names = {name.rpartition('/')[2] for name in file.namelist()}
        except Exception:  # of several types; `damage` reports what is wrong
            return 'torch'
        is_torch = 'data.pkl' in names and 'constants.pkl' not in names
        return 'torch' if is_torch else 'a zip archive (of TorchScript? Then save model.state_dict() instead)'
    if head.startswith(_OLD_TORCH):
        return 'torch'
    if head.startswith(b'\x80'):
        return 'pickle'
    # enough to tell a web page or a pointer of Git LFS
    return f'a file that begins with {head[:40]!r}' if head else 'an empty file'


def damage(path) -> str | None:
    """Return what is wrong with a file of torch, by the checksums in its archive; None if it is intact.

    Files from before torch 1.6 and of other kinds have no checksums; only damage that stops the reading shows.
    """
    with open(path, 'rb') as file:
        if file.read(4) != b'PK\x03\x04' and kind_of_file(path) in CHECKPOINT_KINDS:
            return None
    try:
        if not zipfile.is_zipfile(path):  # what makes it one is at its end
            return 'its end is missing'
        with zipfile.ZipFile(path) as file:  # `torch.serialization.set_crc32_options` can turn off all checksums
            broken = any(record.CRC for record in file.infolist()) and file.testzip()
    except Exception as error:  # of several types, as the bytes may be anything
        return first_line(error)
    return f'the checksum of {broken} is wrong' if broken else None


@dataclass
class Notes:
    """The files that a run wrote into its work dir, and the only ones that it may delete: names, the oldest first.

    A name is noted before its file is written, so a file may be missing. The best come in the order of ``save_best``.
    """

    #: An id of the run, which its checkpoints hold as ``run_id``.
    run: str
    checkpoints: list = field(default_factory=list)
    best: list = field(default_factory=list)
    #: How many validations the best are the best of.
    validations: int = 0
    #: The config of the run, '' if it is not known.
    config: str = ''


def read_notes(work_dir) -> Notes | None:
    """Return the notes of the run of a work dir, or None if there are none or they cannot be read."""
    with suppress(OSError, TypeError, ValueError):
        notes = Notes(**json.loads(Path(work_dir, NOTES).read_text()))
        # a name that leads out of the work dir was not written by the run
        return notes if all(map(lies_within, (*notes.checkpoints, *notes.best, notes.config))) else None


def write_notes(work_dir, notes: Notes):
    """Write the notes of a run, completely or not at all."""
    with atomic_write(Path(work_dir, NOTES)) as part:
        part.write_text(json.dumps(asdict(notes)))


def checkpoints_in(work_dir) -> list:
    """Return the paths of the checkpoints of a work dir, the best ones too, by name.

    They are the files that the run noted and the one that the pointer names. For runs of plain mmengine, which notes
    nothing, all files are added that end in ``.pth``.
    """
    folder, notes = Path(work_dir), read_notes(work_dir)
    noted = (*notes.checkpoints, *notes.best) if notes else ()
    found = {*(folder / name for name in noted), *folder.glob('*.pth'), _pointed(work_dir)}
    return sorted(path for path in found if path and path.is_file())


def is_checkpoint_of(work_dir, path) -> bool:
    """Whether a path is one of `checkpoints_in` a work dir, or the work dir itself."""
    path = Path(path)
    if path.is_dir():
        return path.resolve() == Path(work_dir).resolve()
    return place_of(path) in map(place_of, checkpoints_in(work_dir))


def place_of(path) -> Path:
    """Return a path with a resolved folder; the file itself is not resolved, as it may link to another run's folder."""
    path = Path(path)
    return path.parent.resolve() / path.name


def newest_checkpoint(work_dir, to_resume: bool = False) -> Path:
    """Return the newest intact checkpoint of a work dir; damaged ones are skipped with a warning.

    Args:
        work_dir: The folder.
        to_resume: Skip the best checkpoints, which hold no optimizer.

    Raises:
        CheckpointError: There is none.
    """
    notes, pointed = read_notes(work_dir), _pointed(work_dir)
    noted = {Path(work_dir, name) for name in notes.checkpoints} if notes else set()

    def is_best(path):
        return path.name.startswith('best_') and path not in noted

    files = [path for path in checkpoints_in(work_dir) if not (to_resume and is_best(path))]
    # best checkpoints repeat older ones, whatever their file times are
    files.sort(key=lambda path: (path == pointed, not is_best(path), path.stat().st_mtime_ns), reverse=True)
    for path in files:
        if (wrong := damage(path)) is None:
            return path
        print_log(f'{path} is damaged and skipped: {wrong}', logger='current', level=logging.WARNING)
    raise CheckpointError(f'no {"intact " if files else ""}checkpoint in {Path(work_dir).absolute()}. Use a checkpoint '
                          'file, or the work dir of a training run')


def best_checkpoint(work_dir) -> Path:
    """Return the best checkpoint of a work dir, or else its `newest_checkpoint`; a log line says which, and why.

    The best is the one that the run noted, or of a run of plain mmengine, which notes nothing, the newest file whose
    name begins with ``best_``.

    Raises:
        CheckpointError: There is none.
    """
    notes = read_notes(work_dir)
    files = [Path(work_dir, name) for name in notes.best] if notes else sorted(
        (path for path in checkpoints_in(work_dir) if path.name.startswith('best_')),
        key=lambda path: path.stat().st_mtime_ns, reverse=True)
    found, why = next((path for path in files if path.is_file() and damage(path) is None), None), 'best'
    if found and notes and notes.validations:
        why = f'best of {counted(notes.validations, "validations")}'
    elif not found:
        found = newest_checkpoint(work_dir)
        why = f'newest, as {files[0].name} is missing or damaged' if files else 'newest, as this folder has no best one'
    if is_first_of_any_launcher():
        print_log(f'checkpoint of {work_dir}: {why}: {found.name}', logger='current')
    return found


def _pointed(work_dir):
    """Return the file that the pointer of a work dir names, whose folder may have been moved; None if there is none."""
    with suppress(OSError):
        path = Path(work_dir, os.path.basename(Path(work_dir, POINTER).read_text(errors='replace').strip()))
        # unlike Path.is_file, os.path.isfile accepts any name
        return path if path.name != POINTER and os.path.isfile(path) else None
