"""Copies of files: found by size and last bytes, which are read anyway, then compared as a whole."""
import hashlib
from collections import defaultdict

from ...files import hash_of
from ..datasets import LOADERS
from ..files import read_files
from .findings import Finding

_TAIL = 4096


def mark_of(path) -> str:
    """Return what all copies of a file, and few other files, share: its size and a digest of its last bytes."""
    with open(path, 'rb') as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL))
        return f'{size} {hashlib.blake2b(file.read(), digest_size=8).hexdigest()}'


def copies_between(images, source, use_cache: bool) -> list:
    """Return the files that have copies in several groups: lists of pairs of a path and its group.

    Args:
        images: The path, mark and group of each image.
        source: The data set, for the cache.
        use_cache: As for `read_files`.
    """
    by_mark = defaultdict(list)
    for path, mark, group in images:
        by_mark[mark].append((path, group))
    alike = [members for mark, members in by_mark.items()
             if mark and len(members) > 1 and len({group for _, group in members}) > 1]
    paths = list(dict.fromkeys(path for members in alike if len({path for path, _ in members}) > 1
                               for path, _ in members))
    states = read_files(paths, hash_of, 'digests', source, use_cache, 'copies')
    digests = {path: state.content for path, state in zip(paths, states, strict=True)}
    found = []
    for members in alike:
        by_content = defaultdict(list)
        for path, group in members:
            by_content[digests.get(path) or path].append((path, group))
        found += [same for same in by_content.values() if len({group for _, group in same}) > 1]
    return found


def add_shared(reports, use_cache: bool = True):
    """Add findings to the reports of other data for images that are also in the training data.

    Args:
        reports: By the names of the users of the data set, see `check_data_sets`.
        use_cache: As for `read_files`.
    """
    trained = [(path, mark, True) for names, report in reports.items() if names.startswith(LOADERS[0])
               for path, _, mark in report.images or ()]
    for names, report in reports.items():
        if names.startswith(LOADERS[0]) or not report.images or not trained:
            continue
        own = [(path, mark, False) for path, _, mark in report.images]
        for same in copies_between(trained + own, report.source, use_cache):
            first = next(path for path, is_trained in same if is_trained)
            report.findings += [Finding('image-in-training', path, 'files', path, None,
                                        'the same file' if path == first else first)
                                for path, is_trained in same if not is_trained]
