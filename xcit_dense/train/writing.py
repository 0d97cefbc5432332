"""Writing into a work dir: completely or not at all, with errors that name the file."""
import copy
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from mmengine.logging import print_log

from ..errors import CheckpointError, OutputError, XCiTDenseError
from ..files import OwnFiles, atomic_write


@contextmanager
def named_errors(path):
    """Turn errors of writing to ``path`` into one that names the file."""
    try:
        yield path
    except XCiTDenseError:
        raise
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter while it handles the former
        number = getattr(error, 'errno', None) or getattr(error.__context__, 'errno', None)
        if number is None:
            raise
        raise CheckpointError(f'cannot write {path}: {os.strerror(number)}. Free disk space, make it writable, or give '
                              'another --work-dir.') from error


def dump_config(cfg, file: Path):
    """Write a config into the folder of a log; other trainings with it begin anew, even if this one was resumed."""
    if cfg.get('resume'):
        cfg = copy.deepcopy(cfg)
        cfg.merge_from_dict(dict(resume=False, **dict(load_from=None) if cfg.resume is True else {}))
    cfg.dump(file)


def publish_config(file: Path, work_dir):
    """Copy the config of a training from next to its log into its work dir, unless it would replace a user's file.

    Raises:
        CheckpointError: The copy cannot be written.
    """
    target = Path(work_dir, file.name)
    try:
        with OwnFiles(work_dir, 'train') as own, named_errors(target):
            own.claim(file.name)
            with atomic_write(target) as part:
                shutil.copyfile(file, part)
    except OutputError:
        print_log(f'{target} was not written by a training and is kept; the config of this one is {file}',
                  logger='current')


def write_checkpoint(checkpoint, path, save):
    """Write a checkpoint with ``save(checkpoint, file)``, completely or not at all.

    Raises:
        CheckpointError: The disk is full or read-only; no file was changed.
    """
    with named_errors(Path(path)) as path, atomic_write(path) as part, open(part, 'wb') as file:
        save(checkpoint, file)
