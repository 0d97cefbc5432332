"""The order of operations on the disk: which file was flushed, replaced or deleted."""
import os
import re
from pathlib import Path


class Disk:
    """Records calls within a folder as ``(call, names..., size)``; a call whose key is in ``failing`` raises that.

    ``*`` stands for the random part of a temporary name, ``.`` for the folder itself. The size is that of a flushed
    file. Deletions of missing files and repetitions of the previous call are not recorded.
    """

    def __init__(self, folder, monkeypatch):
        self.folder, self.calls, self.failing = Path(folder), [], {}
        for call in ('fsync', 'replace', 'rename', 'unlink', 'remove'):
            monkeypatch.setattr(os, call, self._noted(call, getattr(os, call)))
        monkeypatch.setattr(Path, 'unlink', self._noted('unlink', Path.unlink))  # Python 3.10 does not use the above
        monkeypatch.setattr(Path, 'rename', self._noted('rename', Path.rename))

    def _noted(self, call, function):
        def noted(*args, **options):
            entry = self._entry(call, *args)
            if entry and self.calls[-1:] != [entry]:
                self.calls.append(entry)
                for key, error in self.failing.items():
                    if entry[:len(key)] == key:
                        raise error
            return function(*args, **options)

        return noted

    def _entry(self, call, *paths):
        if call == 'fsync':
            path = Path(os.readlink(f'/proc/self/fd/{paths[0]}'))
            more = () if path.is_dir() else (path.stat().st_size, )
        else:
            path, more = Path(paths[0]), tuple(map(self._name, paths[1:]))
        if path.exists() and (path == self.folder or self.folder in path.parents):
            return {'remove': 'unlink'}.get(call, call), self._name(path), *more
        return None

    def _name(self, path):
        return re.sub(r'\.[0-9a-f]{8}\.part$', '.*.part', os.path.relpath(path, self.folder))
