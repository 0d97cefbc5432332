"""Write files completely or not at all, and never over files of others."""
import hashlib
import json
import os
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from ..errors import OutputError
from .text import counted, listed

#: A file in every folder that a tool writes into. By tool, it lists the files that the tool wrote, with their stamps.
RECORD = '.made_by_xcit_dense.json'
#: The name in it of the tool that copies data.
COPIER = 'check_data --to'
#: The files that this command reads, by their real paths.
_INPUTS = set()


def folder_of(what: str) -> Path:
    """Return the folder ``configs`` or ``docs``: in ``.mim`` of an installed package, or in the checkout."""
    package = Path(__file__).parents[1]
    installed = package / '.mim' / what
    return installed if installed.is_dir() else package.parent / what


@contextmanager
def atomic_write(path: Path):
    """Yield a temporary path next to ``path``; it becomes ``path`` at the end, or is deleted after an error.

    The old content of ``path`` stays until the new content is on the disk, also through a loss of power.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f'{path.name}.{uuid4().hex[:8]}.part')
    try:
        yield part
        _flush(part)
        os.replace(part, path)
        with suppress(OSError):  # some network file systems cannot do this; the content is safe
            _flush(path.parent)  # the name
    finally:
        part.unlink(missing_ok=True)


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def note_inputs(*paths):
    """Note files that this command reads, and that `check_no_input` protects."""
    _INPUTS.update(map(os.path.realpath, paths))


def read_text(path) -> str:
    """Return the text of a user's file, without the byte order mark with which Windows begins UTF-8; it is an input."""
    note_inputs(path)
    return Path(path).read_text('utf-8-sig')


def check_no_input(*paths):
    """Raise `OutputError` if a path to write is a file that this command reads, also through a link."""
    for path in paths:
        if os.path.realpath(path) in _INPUTS:
            raise OutputError(f'cannot write {path}: this command reads it. Choose another output path.')


def hash_of(path) -> str:
    """Return the SHA-256 of a file in hexadecimal; it is read in chunks."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def stamp_of(path, follow_links: bool = True) -> list:
    """Return what changes when a file is written: its size and time, as a list because JSON has no tuples.

    ``path`` may also be the result of `os.stat`. Without ``follow_links``, a link counts as a file of its own.
    """
    state = path if isinstance(path, os.stat_result) else os.stat(path, follow_symlinks=follow_links)
    return [state.st_size, state.st_mtime_ns]


class OwnFiles(AbstractContextManager):
    """The files in a folder that one tool wrote and may therefore overwrite; a record in the folder lists them.

    Use it as a context manager: claim the files, then write them. At the end they are recorded with size and time.
    Files of a tool that is killed are not recorded, because nobody can say later who wrote them. ``overwrite`` says
    whether the tool may replace files that it did not write; it is None if the tool has no such option.
    """

    def __init__(self, folder, tool: str, overwrite: bool | None = False):
        self.folder = Path(folder).expanduser()
        self.tool, self.overwrite = tool, overwrite
        self._claimed, self._made_folders = set(), []  # the innermost first
        self._own, self._others = None, {}  # names that may be replaced; stamps of others' files that will be

    def __exit__(self, *error):
        self.close()

    def close(self):
        """Record what was written. A file that somebody changes later no longer counts as the tool's."""
        written = {name: self._stamp_of(name) for name in self._claimed if os.path.lexists(self.folder / name)}
        written = {name: stamp for name, stamp in written.items() if stamp != self._others.get(name)}  # left as it was
        others = {name: stamp for name, stamp in self._recorded().items()
                  if name not in self._claimed and os.path.lexists(self.folder / name)}
        with suppress(OSError):  # a full disk, which the tool itself reports
            if self._claimed:
                self._record({**others, **written})
            for folder in self._made_folders:
                folder.rmdir()  # unless something is in it

    def names(self) -> set:
        """Return the files that the tool wrote and nobody changed since, relative to the folder."""
        return {name for name, stamp in self._recorded().items() if lies_within(name)
                and os.path.lexists(self.folder / name) and stamp == self._stamp_of(name)}

    def claim(self, *names):
        """Announce which files, relative to the folder, will be written, before writing anything. Creates the folder.

        `OutputError` if a file that the tool did not write exists already, or the folder cannot be written into.
        """
        names = [Path(name).as_posix() for name in names]
        if folders := [name for name in names if (self.folder / name).is_dir()]:
            raise OutputError(f'cannot write {self.folder / folders[0]}: it is a folder')
        if self.folder.exists() and not self.folder.is_dir():
            raise OutputError(f'cannot write into {self.folder}: it is not a folder')
        if self._own is None:
            self._own = self.names()
        others = [name for name in names if name not in self._own and os.path.lexists(self.folder / name)]
        check_no_input(*(self.folder / name for name in others))
        if others and not self.overwrite:
            fix = 'Choose another output path' + ('.' if self.overwrite is None else ', or replace with --overwrite.')
            raise OutputError(f'{self.tool} would overwrite {counted(len(others), "files")} in {self.folder} that it '
                              f'did not write or finish, or that changed since: {listed(others)}. {fix}')
        try:
            for name in others:
                if (self.folder / name).is_symlink():  # the file that it points to is somebody else's
                    (self.folder / name).unlink()
                else:
                    self._others[name] = self._stamp_of(name)
            self._made_folders = self._made_folders or [
                folder for folder in (self.folder, *self.folder.parents) if not folder.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claimed.update(names)
            self._own.update(names)
        except OSError as error:
            raise OutputError(f'cannot write into {self.folder}: {error.strerror}') from error

    def _stamp_of(self, name):
        return stamp_of(self.folder / name, follow_links=False)  # a link in place of a file is another file

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
    """Return the paths of the files in a folder that tools wrote there, by the record and the file sizes.

    Data sets of ``make_demo_data`` and `COPIER` do not count. Copies of a folder do: file times are not compared.
    """
    record = {name: stamp for tool, files in _read_record(folder).items() if tool not in ('make_demo_data', COPIER)
              for name, stamp in files.items() if lies_within(name)}
    return {path for name, stamp in record.items() if (path := Path(folder, name)).is_file()
            and isinstance(stamp, list) and stamp[:1] == stamp_of(path)[:1]}


def _read_record(folder):
    """Return the names and stamps by tool; empty without a record, or with one that cannot be read."""
    try:
        return {tool: dict(files) for tool, files in json.loads(Path(folder, RECORD).read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def lies_within(name) -> bool:
    """Whether a relative name stays within its folder. Names that are read from a file cannot be trusted."""
    return not Path(name).is_absolute() and '..' not in Path(name).parts
