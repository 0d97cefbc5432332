"""Files are written completely or not at all: the order on the disk, and what errors leave behind."""
import errno
import hashlib
import os

import pytest

from helpers.disk import Disk
from xcit_dense._utils.files import atomic_write, hash_of

PART = 'file.txt.*.part'


@pytest.fixture
def disk(tmp_path, monkeypatch):
    return Disk(tmp_path, monkeypatch)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / 'file.txt'
    path.write_text('old')
    return path


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(path, disk):
    before = os.listdir('/proc/self/fd')
    with atomic_write(path) as part:
        part.write_text('whole')
        assert path.read_text() == 'old' and part.parent == path.parent and disk.calls == []
        assert list(path.parent.glob('*.part')) == [part]  # the name of what a training deletes
    assert disk.calls == [('fsync', PART, 5), ('replace', PART, 'file.txt'), ('fsync', '.')]
    assert path.read_text() == 'whole' and os.listdir(path.parent) == ['file.txt']
    assert len(os.listdir('/proc/self/fd')) == len(before)
    disk.failing[('fsync', '.')] = OSError(errno.EINVAL, 'not here')  # some network file systems cannot flush a folder
    with atomic_write(path) as part:
        part.write_text('more')
    assert path.read_text() == 'more' and disk.calls[-1] == ('fsync', '.')


@pytest.mark.parametrize('call', (('fsync', PART), ('replace', PART)))
def test_a_disk_that_fails_leaves_what_was_there(call, path, disk):
    before = os.listdir('/proc/self/fd')
    disk.failing[call] = OSError(errno.EIO, 'broken')
    with pytest.raises(OSError, match='broken'), atomic_write(path) as part:
        part.write_text('whole')
    assert path.read_text() == 'old' and os.listdir(path.parent) == ['file.txt']
    assert ('fsync', '.') not in disk.calls and len(os.listdir('/proc/self/fd')) == len(before)


@pytest.mark.parametrize('error, begun', ((OSError, False), (KeyboardInterrupt, True)))
def test_an_error_of_the_writer_leaves_what_was_there(error, begun, path, disk):
    with pytest.raises(FileNotFoundError), atomic_write(path):
        pass  # nothing written is one too
    assert path.read_text() == 'old' and not disk.calls
    with pytest.raises(error), atomic_write(path) as part:
        if begun:
            part.write_text('hal')
        raise error
    assert path.read_text() == 'old' and os.listdir(path.parent) == ['file.txt']
    assert disk.calls == [('unlink', PART)] * begun


def test_folders_are_made_and_two_writers_do_not_meet(tmp_path):
    path = tmp_path / 'a/b/file.txt'
    with atomic_write(path) as first, atomic_write(path) as second:
        first.write_text('first')
        second.write_text('second')
        assert first != second and not path.exists()
    assert path.read_text() == 'first' and os.listdir(path.parent) == ['file.txt']  # the outer ends last


def test_the_hash_is_that_of_the_whole_file(path):
    content = os.urandom(2**20) * 2 + b'end'  # more than is read at once
    path.write_bytes(content)
    assert hash_of(path) == hashlib.sha256(content).hexdigest()
