"""The record of what a tool wrote: the tool may overwrite only these files."""
import json
import os

import pytest

from helpers.disk import Disk
from xcit_dense._utils.files import RECORD, OwnFiles
from xcit_dense.errors import OutputError


def write(folder, *names, tool='tool', overwrite=False, text='ours'):
    with OwnFiles(folder, tool, overwrite) as own:
        own.claim(*names)
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


def test_own_files_are_written_again_and_others_are_not(tmp_path):
    (tmp_path / 'theirs').write_text('theirs')
    write(tmp_path, 'a', 'deep/b')
    write(tmp_path, 'deep/b', 'c', text='longer')
    with pytest.raises(OutputError, match='tool would overwrite 1 file in .*theirs.*--overwrite'):
        write(tmp_path, 'a', 'theirs', 'new')
    assert (tmp_path / 'theirs').read_text() == 'theirs' and (tmp_path / 'a').read_text() == 'ours'
    assert not (tmp_path / 'new').exists() and OwnFiles(tmp_path, 'tool').names() == {'a', 'deep/b', 'c'}
    write(tmp_path, 'a', 'theirs', overwrite=True)
    assert (tmp_path / 'theirs').read_text() == 'ours'
    write(tmp_path, 'theirs')  # now it is the tool's


def test_a_file_of_others_that_was_not_written_after_all_stays_theirs(tmp_path):
    for name in 'ab':
        (tmp_path / name).write_text('theirs')
    with pytest.raises(KeyboardInterrupt), OwnFiles(tmp_path, 'tool', overwrite=True) as own:
        own.claim('a', 'b', 'c')
        (tmp_path / 'b').write_text('ours')
        raise KeyboardInterrupt
    assert OwnFiles(tmp_path, 'tool').names() == {'b'}
    (tmp_path / 'c').write_text('theirs, later')
    with pytest.raises(OutputError, match='2 files'):
        write(tmp_path, 'a', 'b', 'c')


def test_what_was_changed_since_or_is_another_tools_is_not_overwritten(tmp_path):
    write(tmp_path, 'a', 'b', 'c')
    (tmp_path / 'a').write_text('changed')
    state = os.stat(tmp_path / 'b')
    (tmp_path / 'b').write_text('ruso')  # as long as before
    os.utime(tmp_path / 'b', ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    (tmp_path / 'c').unlink()
    (tmp_path / 'c').symlink_to(tmp_path / 'a')
    for name in 'abc':
        with pytest.raises(OutputError, match='changed since'):
            write(tmp_path, name)
    write(tmp_path, 'd')
    with pytest.raises(OutputError, match='other would overwrite'):
        write(tmp_path, 'd', tool='other')
    write(tmp_path, 'e', tool='other')
    write(tmp_path, 'd')  # which the other did not forget


def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path):
    (tmp_path / 'photo').write_text('theirs')
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out/a').symlink_to(tmp_path / 'photo')
    with pytest.raises(OutputError, match='--overwrite'):
        write(tmp_path / 'out', 'a')
    write(tmp_path / 'out', 'a', overwrite=True)
    assert (tmp_path / 'photo').read_text() == 'theirs' and not (tmp_path / 'out/a').is_symlink()


def test_what_a_killed_tool_left_may_be_anybodys(tmp_path):
    """Later nobody can say who wrote a file; files that the tool did not reach are still its own."""
    write(tmp_path, 'b')
    OwnFiles(tmp_path, 'tool').claim('a', 'b')  # and never ends
    (tmp_path / 'a').write_text('half')
    with pytest.raises(OutputError, match='1 file .*did not write or finish.*: a'):
        write(tmp_path, 'a', 'b')
    write(tmp_path, 'a', 'b', overwrite=True)
    write(tmp_path, 'a', 'b')


@pytest.mark.parametrize('record', (
    '', '[]', 'null', '{"tool": 3}', '{"tool": ["a"]}', '\0', '{"tool": {"a": 1}}',
    *(json.dumps(dict(tool={name: [6, 0]})) for name in ('../a', 'TMP/a', 'x/../../a'))))  # of somebody else
def test_a_record_that_cannot_be_read_or_leads_elsewhere_makes_nothing_the_tools(record, tmp_path):
    (tmp_path / 'a').write_text('theirs')
    os.utime(tmp_path / 'a', ns=(0, 0))
    folder = tmp_path / 'folder'
    (folder / 'x').mkdir(parents=True)
    (folder / 'a').write_text('theirs')
    (folder / RECORD).write_text(record.replace('TMP', str(tmp_path)))
    assert OwnFiles(folder, 'tool').names() == set()
    with pytest.raises(OutputError, match='1 file'):
        write(folder, 'a')


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / 'file').write_text('')
    for place in ('file', 'file/out'):
        with pytest.raises(OutputError, match='cannot write into'):
            write(tmp_path / place, 'a')
    disk = Disk(tmp_path, monkeypatch)
    disk.failing[('fsync', )] = OSError(28, 'No space left on device')
    write(tmp_path / 'out', 'a')  # what the tool wrote counts, not that it could not be noted
    assert (tmp_path / 'out/a').read_text() == 'ours' and not (tmp_path / 'out' / RECORD).exists()


def test_folders_that_were_made_for_nothing_are_gone(tmp_path):
    for folder in (tmp_path, tmp_path / 'a/b/c'):
        with OwnFiles(folder, 'tool') as own:
            own.claim('file')
    assert not list(tmp_path.iterdir())
    (tmp_path / 'a').mkdir()
    with OwnFiles(tmp_path / 'a/b/c', 'tool') as own:
        own.claim('file')
        (tmp_path / 'a/b/theirs').touch()
    assert sorted(path.name for path in tmp_path.rglob('*')) == ['a', 'b', 'theirs']
