"""Writing into a work dir: whole or not at all, and errors that name the file."""
import os
from contextlib import contextmanager
from pathlib import Path

from ..errors import CheckpointError, XCiTDenseError
from ..files import atomic_write


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


def write_checkpoint(checkpoint, path, save):
    """Write a checkpoint with ``save(checkpoint, file)`` whole or not at all.

    Raises:
        CheckpointError: The disk is full or read-only; nothing was changed.
    """
    with named_errors(Path(path)) as path, atomic_write(path) as part, open(part, 'wb') as file:
        save(checkpoint, file)
