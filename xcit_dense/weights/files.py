"""Files on the disk: what kind they are, and written whole or not at all."""
import os
import re
import zipfile
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

#: How a file that torch wrote before version 1.6 begins; a pickle, as other files are too.
_OLD_TORCH = b'\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.'

#: The kinds that `kind_of_file` knows and `xcit_dense.weights.read_checkpoint` reads.
CHECKPOINT_KINDS = ('torch', 'safetensors', 'pickle')


def kind_of_file(path) -> str:
    """Return one of `CHECKPOINT_KINDS`, told by how the file begins, or say in words what else it is."""
    with open(path, 'rb') as file:
        head = file.read(512)
    if head[4:9] == b'\0\0\0\0{':  # the header after its length, whose first bytes may be anything
        return 'safetensors'
    if head.startswith(b'PK\x03\x04'):
        return _kind_of_zip(path)
    if head.startswith(_OLD_TORCH):
        return 'torch'
    if head.startswith(b'\x80'):
        return 'pickle'
    if not head:
        return 'an empty file'
    if re.match(rb'\s*<(!doctype|html|head|\?xml)', head, re.I):
        return 'an HTML page'
    if head.startswith(b'version https://git-lfs'):
        return 'the pointer of Git LFS to a file'
    if not re.search(rb'[^\t\n\r\x20-\x7e]', head):
        return 'a text file'
    return 'a file of an unknown kind'


def _kind_of_zip(path):
    try:
        with zipfile.ZipFile(path) as file:
            names = {name.rpartition('/')[2] for name in file.namelist()}
    except Exception:  # of several types; what is wrong with the file is said when torch reads it
        return 'torch'
    if 'constants.pkl' in names:
        return 'a TorchScript archive (save model.state_dict() instead)'
    return 'torch' if 'data.pkl' in names else 'a zip archive'


@contextmanager
def written_whole(path: Path):
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


def damage(path) -> str | None:
    """Say what is wrong with a file of torch, by the check sums that its archive holds; None if it is whole.

    Files of before torch 1.6 hold none: reading them tells.
    """
    with open(path, 'rb') as file:
        if file.read(4) != b'PK\x03\x04' and kind_of_file(path) in CHECKPOINT_KINDS:
            return None
    try:
        with zipfile.ZipFile(path) as file:
            broken = file.testzip()
    except Exception as error:  # of several types, for whatever the bytes are
        return first_line(error)
    return f'the check sum of {broken} is wrong' if broken else None


def first_line(error) -> str:
    """Return the first line of an error, or its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
