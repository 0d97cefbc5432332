"""Files written whole or not at all."""
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4


@contextmanager
def atomic_write(path: Path):
    """Give a name to write to beside ``path``; it becomes ``path`` at the end, or is gone after an error.

    What ``path`` was before stays until the new content lies on the disk, through a loss of power too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'{path.name}.{uuid4().hex[:8]}.part')
    try:
        yield part
        _flush(part)
        os.replace(part, path)
        with suppress(OSError):  # some network file systems cannot; the content is there
            _flush(path.parent)  # the name
    finally:
        part.unlink(missing_ok=True)


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
