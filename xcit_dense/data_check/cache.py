"""Results of the data check, kept in the user's cache folder for the next run. Losing one only costs time."""
import hashlib
import json
import os
from pathlib import Path

from ..checkpoint.files import written_whole

#: Part of every key: what other checks wrote is not read.
VERSION = 1


def stamp_of(path) -> list:
    """Return what changes when a file is written: its size and time. It is a list, as JSON gives it back."""
    state = os.stat(path)
    return [state.st_size, state.st_mtime_ns]


def recall(kind, path):
    """Return what `remember` kept, or None; a damaged file counts as none."""
    try:
        digest, _, text = _file_of(kind, path).read_text().partition('\n')
        if hashlib.sha256(text.encode()).hexdigest() == digest:
            return json.loads(text)
    except (OSError, ValueError, RuntimeError):
        pass
    return None


def remember(kind, path, content):
    """Keep a result for a path; where nothing can be written, nothing is kept."""
    text = json.dumps(content)
    try:
        with written_whole(_file_of(kind, path)) as part:
            part.write_text(f'{hashlib.sha256(text.encode()).hexdigest()}\n{text}')
    except (OSError, RuntimeError):  # a read-only home, a full disk, no home at all
        pass


def _file_of(kind, path):
    folder = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache', 'xcit_dense/data_check')
    key = json.dumps([VERSION, kind, os.path.abspath(path)])
    return folder / f'{hashlib.sha256(key.encode()).hexdigest()[:32]}.json'
