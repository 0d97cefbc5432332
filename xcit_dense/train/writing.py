"""Writing into a work dir: whole or not at all, and errors that name the file."""
import os
from contextlib import contextmanager
from pathlib import Path

from mmengine.logging import print_log

from ..errors import CheckpointError, OutputError, XCiTDenseError
from ..files import OwnFiles, atomic_write


@contextmanager
def named_errors(path):
    """Turn errors of writing to ``path`` into one that names it."""
    try:
        yield path
    except XCiTDenseError:
        raise
    except (OSError, RuntimeError) as error:  # the latter by torch's writer while it handles the former
        number = getattr(error, 'errno', None) or getattr(error.__context__, 'errno', None)
        if number is None:
            raise
        raise CheckpointError(f'cannot write {path}: {os.strerror(number)}. Make room or writable, or name another '
                              '--work-dir.') from error


def dump_config(cfg, name: str, work_dir, log_dir):
    """Write a config into a work dir, or beside the log where a file of that name is there that no run dumped.

    Args:
        cfg: The config.
        name: Of the file.
        work_dir: The folder of the run.
        log_dir: The folder of its log.
    """
    try:
        with OwnFiles(work_dir, 'train') as own:
            own.claim(name)
            cfg.dump(Path(work_dir, name))
    except OutputError:
        cfg.dump(Path(log_dir, name))
        print_log(f'{Path(work_dir, name)} is no dump of a run and stays; the config of this one is in {log_dir}',
                  logger='current')


def write_checkpoint(checkpoint, path, save):
    """Write a checkpoint with ``save(checkpoint, file)`` whole or not at all.

    Raises:
        CheckpointError: The disk is full or read-only; nothing was changed.
    """
    with named_errors(Path(path)) as path, atomic_write(path) as part, open(part, 'wb') as file:
        save(checkpoint, file)
