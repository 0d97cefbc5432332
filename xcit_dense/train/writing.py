"""Writing into a work dir: completely or not at all, with errors that name the file."""
import os
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


def dump_config(cfg, name: str, work_dir, log_dir):
    """Write a config into a work dir, or next to the log if a file of that name exists that no run wrote.

    Args:
        cfg: The config.
        name: The name of the file.
        work_dir: The folder of the run.
        log_dir: The folder of its log.
    """
    try:
        with OwnFiles(work_dir, 'train') as own:
            own.claim(name)
            cfg.dump(Path(work_dir, name))
    except OutputError:
        cfg.dump(Path(log_dir, name))
        print_log(f'{Path(work_dir, name)} was not written by a run and is kept; the config of this run is in '
                  f'{log_dir}', logger='current')


def write_checkpoint(checkpoint, path, save):
    """Write a checkpoint with ``save(checkpoint, file)``, completely or not at all.

    Raises:
        CheckpointError: The disk is full or read-only; no file was changed.
    """
    with named_errors(Path(path)) as path, atomic_write(path) as part, open(part, 'wb') as file:
        save(checkpoint, file)
