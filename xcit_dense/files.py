"""Files written whole or not at all, and over nobody else's."""
import json
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from .errors import OutputError
from .text import counted, listed

#: Lies in every folder that a tool writes into: by tool, the names of the files that it wrote, with their stamps.
RECORD = '.made_by_xcit_dense.json'


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


def stamp_of(path, follow_links: bool = True) -> list:
    """Return what changes when a file is written: its size and time. It is a list, as JSON gives it back.

    Args:
        path: That of the file, or what `os.stat` said of it.
        follow_links: Whether a link stands for the file that it leads to.
    """
    state = path if isinstance(path, os.stat_result) else os.stat(path, follow_symlinks=follow_links)
    return [state.st_size, state.st_mtime_ns]


class OwnFiles:
    """The files in a folder that one tool wrote, which it alone may write again; a record there keeps their names.

    Use it as a context in which the files are claimed and then written: at its end they are noted, with size and time.
    What a tool that is killed has written by then is noted nowhere, for who wrote it cannot be told later.

    Args:
        folder: The folder; it is made with the first claim.
        tool: The name of the tool.
        overwrite: Whether files may be replaced that the tool did not write; None where it has no such option.
    """

    def __init__(self, folder, tool: str, overwrite: bool | None = False):
        self.folder = Path(folder).expanduser()
        self.tool, self.overwrite = tool, overwrite
        self._claimed, self._made_folder = set(), False
        self._own, self._others = None, {}  # names that may be replaced; stamps of others' files that will be

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Note what was written: a file that somebody changes later is the tool's no more."""
        written = {name: self._stamp_of(name) for name in self._claimed if os.path.lexists(self.folder / name)}
        written = {name: stamp for name, stamp in written.items() if stamp != self._others.get(name)}  # left as it was
        others = {name: stamp for name, stamp in self._recorded().items()
                  if name not in self._claimed and os.path.lexists(self.folder / name)}
        with suppress(OSError):  # a full disk, which the tool itself tells of
            if self._claimed:
                self._record({**others, **written})
            if self._made_folder:
                self.folder.rmdir()  # unless something is in it

    def names(self) -> set:
        """Return the files that the tool wrote, as far as they are what it wrote, relative to the folder."""
        return {name for name, stamp in self._recorded().items() if lies_within(name)
                and os.path.lexists(self.folder / name) and stamp == self._stamp_of(name)}

    def claim(self, *names):
        """Say which files are about to be written; call it before anything is. The folder is made.

        Args:
            *names: Theirs, relative to the folder.

        Raises:
            OutputError: There are some already that the tool did not write, or the folder cannot be written into.
        """
        names = [Path(name).as_posix() for name in names]
        if folders := [name for name in names if (self.folder / name).is_dir()]:
            raise OutputError(f'cannot write {self.folder / folders[0]}: it is a folder')
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError(f'cannot write into {self.folder}: it is no folder')
        if self._own is None:
            self._own = self.names()
        others = [name for name in names if name not in self._own and os.path.lexists(self.folder / name)]
        if others and not self.overwrite:
            mend = 'Give another place' + ('.' if self.overwrite is None else ', or --overwrite to replace them.')
            raise OutputError(f'{self.folder} holds {counted(len(others), "files")} that {self.tool} would write and '
                              'did not make or not finish, or that were changed since: '
                              f'{listed(others)}. {mend}')
        try:
            for name in others:
                if (self.folder / name).is_symlink():  # what it leads to is another's
                    (self.folder / name).unlink()
                else:
                    self._others[name] = self._stamp_of(name)
            self._made_folder = self._made_folder or not self.folder.exists()
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claimed.update(names)
            self._own.update(names)
        except OSError as error:
            raise OutputError(f'cannot write into {self.folder}: {error.strerror}') from error

    def _stamp_of(self, name):
        return stamp_of(self.folder / name, follow_links=False)  # a link in the place of a file is another file

    def _recorded(self):
        return _read_record(self.folder).get(self.tool, {})

    def _record(self, files):
        record = {**_read_record(self.folder), self.tool: dict(sorted(files.items()))}
        record = {tool: files for tool, files in record.items() if files}
        if record:
            with atomic_write(self.folder / RECORD) as part:
                part.write_text(json.dumps(record, indent=0))
        else:
            (self.folder / RECORD).unlink(missing_ok=True)


def drawn_in(folder) -> set:
    """Return the paths of the files in a folder that a tool wrote beside its work, by the record and their sizes.

    The data set of ``make_demo_data`` is none. Copies of a folder count: times do not.
    """
    record = {name: stamp for tool, files in _read_record(folder).items() if tool != 'make_demo_data'
              for name, stamp in files.items() if lies_within(name)}
    return {path for name, stamp in record.items() if (path := Path(folder, name)).is_file()
            and isinstance(stamp, list) and stamp[:1] == stamp_of(path)[:1]}


def _read_record(folder):
    """Return the names and stamps by tool; without a record, or with one that cannot be read, nothing is known."""
    try:
        record = json.loads(Path(folder, RECORD).read_text())
        return {tool: dict(files) for tool, files in record.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def lies_within(name) -> bool:
    """Whether a name leads nowhere out of its folder; one that is read from a file may be anybody's."""
    return not Path(name).is_absolute() and '..' not in Path(name).parts
