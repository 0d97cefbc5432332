"""Files are read without running anything in them."""
import argparse
import os
import pickle
import time
import zipfile
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import load_checkpoint
from safetensors import torch as safetensors_torch

from helpers.models import Call, assert_equal, dense_state, save
from helpers.tools import python
from helpers.weight_files import rejects, write_pickle
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import best_checkpoint, fetch, find_state_dict, newest_checkpoint, read_checkpoint
from xcit_dense.weights.convert import convert, inspect
from xcit_dense.weights.files import Notes, is_checkpoint_of, write_notes
from xcit_dense.weights.read import _ArrayReader


@pytest.mark.parametrize('content, words', (
    (b'', 'an empty file'), (b'<!DOCTYPE html><html>404</html>', 'a file that begins with .*html'),
    (b'version https://git-lfs.github.com/spec/v1\n', 'begins with .*git-lfs'),
    (b'{"weights": 1}', 'begins with .*weights'),
    (b'weights {"a": 1}', 'begins with .*weights'),  # the brace where that of safetensors is
    (bytes(range(64)), 'a file that begins with'), (b'PK\x03\x04broken', 'damaged'), (b'\x80\x02missing', 'damaged'),
    (b'\x20\0\0\0\0\0\0\0{"broken', 'damaged')))
def test_files_that_are_no_checkpoints_say_what_they_are(tmp_path, content, words):
    path = tmp_path / 'weights.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf'cannot read .*weights\.pth: .*{words}.*download it again'):
        read_checkpoint(path)


@pytest.mark.parametrize('write, words', (
    (torch.save, 'its end is missing'),
    (lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False), 'unexpected EOF'),
    (safetensors_torch.save_file, 'incomplete'),
    (lambda state, path: write_pickle({'a': state['a'].numpy()}, path), 'bytes'),
), ids=('torch', 'old torch', 'safetensors', 'pickle'))
def test_truncated_file(tmp_path, write, words):
    path = tmp_path / 'weights'
    write({'a': torch.rand(10_000)}, path)
    content = path.read_bytes()
    for part in (10, 2):
        path.write_bytes(content[:len(content) // part])
        with rejects('weights: the file is damaged or incomplete (', words, 'download it'):
            read_checkpoint(path)


def zip_archive(path):
    with zipfile.ZipFile(path, 'w') as file:
        file.writestr('readme.txt', 'hello')


@pytest.mark.parametrize('write, words', (
    (zip_archive, 'zip archive'),
    (lambda path: torch.jit.script(torch.nn.ReLU()).save(str(path)), r'zip archive .*save model\.state_dict'),
    (lambda path: torch.save(torch.nn.Linear(2, 2), path),
     r'not allowed to hold torch\.nn\.modules\.linear\.Linear\. .* save model\.state_dict\(\) instead'),
    (lambda path: torch.save({'f': Call(os.getcwd)}, path), r'not allowed to hold posix\.getcwd\. '),
), ids=('zip', 'script', 'module', 'call'))
@pytest.mark.filterwarnings('ignore:`torch.jit')
def test_what_is_saved_otherwise_says_so_without_unsafe_advice(tmp_path, write, words):
    write(tmp_path / 'model.pth')
    with pytest.raises(CheckpointError, match=words) as caught:
        read_checkpoint(tmp_path / 'model.pth')
    assert not any(advice in str(caught.value) for advice in ('damaged', 'weights_only', 'safe_globals'))


def test_file_without_weights(tmp_path):
    path = save(tmp_path / 'no.pth', {'epoch': 3})
    for use in (inspect, partial(convert, out=tmp_path / 'out.pth', target='timm')):
        with rejects('no.pth holds no weights', 'epoch'):
            use(path)


#: What a file may not hold, and how the error names it.
REFUSED = {
    'code': (Call(os.mkdir, 'trace'), 'posix.mkdir'), 'shell': (Call(os.system, 'mkdir trace'), 'posix.system'),
    'expression': (Call(eval, 'open("trace", "w")'), 'eval'), 'function': (print, 'print'),
    'attribute': (Call(getattr, HistoryBuffer, '__init__'), 'attr'),
    'pointer': (Call(np.ndarray, (1, ), np.dtype('O8'), b'AAAAAAAA'), "'O8'"),  # of the attacker's choice
    'array': (Call(np.ndarray, (1, )), 'by hand'), 'object': (np.dtype('O'), "'O8'"),
    'fields': (np.dtype([('a', 'f4')]), "'V4'"), 'objects': (np.array([object], dtype=object), ''),
    'text': (np.array(['text']), "'U4'"),
    'byte order': (np.arange(3, dtype='>f4'), "'>'"),  # other numbers, if its bytes were taken in this machine's order
}


@pytest.mark.parametrize('write', (torch.save, *(partial(write_pickle, protocol=number) for number in (2, 4, 5))),
                         ids=('torch', 'pickle 2', 'pickle 4', 'pickle 5'))
@pytest.mark.parametrize('name', REFUSED)
def test_a_file_that_would_run_code_is_refused(tmp_path, monkeypatch, write, name):
    """Also anything other than numbers in arrays."""
    monkeypatch.chdir(tmp_path)
    content, words = REFUSED[name]
    write({'model': {}, 'a': np.zeros(3), 'x': content}, tmp_path / 'file.pth')
    with rejects('not allowed to hold', words):
        read_checkpoint(tmp_path / 'file.pth')
    assert os.listdir() == ['file.pth']


@pytest.mark.parametrize('state', ((None, {'__defaults__': (1, )}), {'__defaults__': (1, )}), ids=('slots', 'dict'))
def test_pickles_cannot_change_the_reader(tmp_path, state):
    """Opcodes by hand: set an attribute of the object that a name refers to."""
    for name in _ArrayReader.KNOWN:
        (tmp_path / 'x.pdparams').write_bytes(
            b'\x80\x02c%b\n%b\n' % tuple(map(str.encode, name.rsplit('.', 1))) + pickle.dumps(state, 2)[2:-1] + b'b.')
        with rejects('not allowed to hold attributes of '):
            read_checkpoint(tmp_path / 'x.pdparams')


@pytest.mark.parametrize('opcodes, words', (
    (b'Nr\xff\xff\xff\x03.', 'memo entries'),  # 1 GiB
    (b'})' + b'\x85' * 10**5 + b'Ns.', 'tuples'),  # the hash of a key
    (b'})' + b'(c__builtin__\ntuple\n]' * 60_000 + b')' + b'ao' * 60_000 + b'Ns.', 'tuples'),
    (b'\x8e' + b'\xff' * 7 + b'\0.', 'damaged'), (b']' * 10**4 + b'a' * 9999 + b'.', 'got a list'), (b'Q', 'damaged'),
    (b'c_codecs\nencode\n' + pickle.dumps(('a', 'utf-16'), 2)[2:-1] + b'R.', "not allowed to hold encoding 'utf-16'"),
), ids=('memo', 'tuples', 'objects', 'bytes', 'lists', 'id', 'encoding'))
def test_a_pickle_made_to_crash_is_refused(tmp_path, opcodes, words):
    (tmp_path / 'x.pdparams').write_bytes(b'\x80\x04' + opcodes)
    with rejects(words):
        find_state_dict(read_checkpoint(tmp_path / 'x.pdparams'), 'x.pdparams')


def test_what_a_program_allows_torch_stays_allowed_there_and_refused_here(tmp_path):
    """By class, and by the names of this package's own stand-ins; usual advice allows NumPy's own constructors."""
    own = [np.ndarray, np.dtype, HistoryBuffer, Fraction, argparse.Namespace,
           (dict, 'mmengine.logging.history_buffer.HistoryBuffer')]
    path = save(tmp_path / 'own.pth', {**dense_state(), 'note': argparse.Namespace(lr=1)})
    torch.save({'x': REFUSED['array'][0]}, tmp_path / 'file.pth')
    with torch.serialization.safe_globals(own):
        before = {*torch.serialization.get_safe_globals()}
        read_checkpoint(path)
        assert {*torch.serialization.get_safe_globals()} == before
        with rejects('not allowed to hold', 'by hand'):
            read_checkpoint(tmp_path / 'file.pth')
        assert {*torch.serialization.get_safe_globals()} == before >= {*own}


@pytest.mark.parametrize('wrap', (lambda v: [v, v], lambda v: (v, v), lambda v: {'a': v, 'b': v}),
                         ids=('list', 'tuple', 'dict'))
@pytest.mark.parametrize('write', (torch.save, write_pickle))
def test_a_container_in_many_places_is_read_once(tmp_path, wrap, write):
    value = np.zeros(1)
    for _ in range(22):  # each holds the one before it twice
        value = wrap(value)
    write({'x': value}, tmp_path / 'shared.pth')
    start = time.process_time()
    value = read_checkpoint(tmp_path / 'shared.pth')['x']
    assert time.process_time() - start < 1
    for _ in range(21):
        value = value['b'] if isinstance(value, dict) else value[1]
    assert type(value) is type(wrap(0))
    assert all(np.array_equal(leaf, np.zeros(1)) for leaf in (value.values() if isinstance(value, dict) else value))


@pytest.mark.parametrize('is_zip', (False, True))
def test_files_of_torch_without_checksums_are_read(tmp_path, is_zip):
    """Files from before torch 1.6 are pickles, which is how PaddlePaddle's begin too."""
    state, path = dense_state(), tmp_path / 'epoch_1.pth'
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    torch.save({'state_dict': state, 'meta': {'epoch': 1}}, path, _use_new_zipfile_serialization=is_zip)
    torch.serialization.set_crc32_options(before)
    read = read_checkpoint(path)
    assert read['meta'] == {'epoch': 1}
    assert_equal(read['state_dict'], state)
    assert newest_checkpoint(tmp_path) == path


def test_arrays_and_log_buffers_come_back(tmp_path):
    array, buffer = np.arange(6, dtype=np.int32).reshape(2, 3), HistoryBuffer([1., 2., 4.], [1, 1, 2])
    read = read_checkpoint(save(tmp_path / 'hub.pth', {
        'x': array, 'y': [np.asfortranarray(array)], 'buffer': buffer, 'number': np.float64(3.5),
        'count': np.int64(7)}))
    assert np.array_equal(read['x'], array) and read['x'].dtype == np.int32 and np.array_equal(read['y'][0], array)
    assert type(pickle.loads(pickle.dumps(read['x']))) is np.ndarray
    assert type(read['buffer']) is HistoryBuffer
    assert np.array_equal(read['buffer'].data[0], [1., 2., 4.]) and read['buffer'].mean(3) == buffer.mean(3)
    assert read['number'] == 3.5 and read['count'] == 7
    read['buffer'].update(5.)
    assert read['buffer'].current() == 5.
    save(tmp_path / 'again.pth', {'buffer': read['buffer']})
    assert read_checkpoint(tmp_path / 'again.pth')['buffer'].current() == 5.


@pytest.mark.parametrize('own', ((), (np.ndarray, HistoryBuffer), (np.dtype, np.zeros(0).__reduce__()[0])))
def test_torch_alone_reads_what_a_run_of_mmengine_wrote(tmp_path, monkeypatch, own):
    """As inferencers of the frameworks do; with whatever a program allows itself, and nothing that could run code."""
    monkeypatch.chdir(tmp_path)
    path, buffer = tmp_path / 'a.pth', HistoryBuffer([1., 2.], [1, 1])
    torch.save(dict(buffer=buffer, array=np.arange(3), number=np.float32(2), state_dict=dict(a=torch.ones(1))), path)
    with torch.serialization.safe_globals(own):
        read = load_checkpoint(torch.nn.Module(), str(path), map_location='cpu')
        assert read['buffer'].mean(2) == 1.5 and read['array'].tolist() == [0, 1, 2] and read['number'] == 2
        for name in set(REFUSED) - {'object', 'fields'} if not own else ():
            torch.save({'x': REFUSED[name][0]}, path)
            with pytest.raises((pickle.UnpicklingError, ValueError)):
                torch.load(path)
    assert not (tmp_path / 'trace').exists()


def test_what_a_program_allowed_before_the_import_stays(tmp_path):
    code = f'''
import numpy as np, torch
arrays = [np.array(['a']), np.array([1 + 2j]), np.zeros(2, '>f4')]
kinds = [type(array.dtype) for array in arrays]
torch.serialization.add_safe_globals([np._core.multiarray._reconstruct, np.ndarray, np.dtype, *kinds])
import xcit_dense.weights
torch.save(arrays, {str(tmp_path / "a.pth")!r})
assert all((a == b).all() for a, b in zip(torch.load({str(tmp_path / "a.pth")!r}), arrays))
'''
    python(code)


def test_newest_checkpoint(tmp_path):
    """The newest intact one is read; a run continues from one with its optimizer, which the best do not have."""
    with rejects('no checkpoint in'):
        newest_checkpoint(tmp_path)
    paths = {number: tmp_path / f'epoch_{number}.pth' for number in (8, 9, 10)}
    for number, path in paths.items():
        save(path, dict(weights=torch.full((1000, ), float(number))))
        os.utime(path, (number, number))
    best = save(tmp_path / 'best_mIoU_iter_8.pth', dict(number=8))  # copied last
    pointer = tmp_path / 'last_checkpoint'
    assert newest_checkpoint(tmp_path) == paths[10]
    (tmp_path / 'run').mkdir()
    (tmp_path / 'run/a.pth').symlink_to(paths[8])
    for folder, path, wanted in ((tmp_path, paths[8], True), ('run', 'run/a.pth', True), ('run', paths[8], False),
                                 ('run', 'run/../run', True), ('run', tmp_path, False)):
        assert is_checkpoint_of(tmp_path / folder, tmp_path / path) == wanted
    pointer.write_text('/elsewhere/run/epoch_8.pth')
    assert newest_checkpoint(tmp_path) == paths[8]
    pointer.write_text(' epoch_9.pth\n')
    assert newest_checkpoint(tmp_path) == paths[9]
    content = bytearray(paths[9].read_bytes())
    content[2000] ^= 1  # a bit of a tensor, which the checksum shows
    paths[9].write_bytes(content)
    assert newest_checkpoint(tmp_path) == paths[10]
    paths[10].write_bytes(paths[10].read_bytes()[:2000])
    assert newest_checkpoint(tmp_path) == paths[8]
    paths[8].unlink()
    assert newest_checkpoint(tmp_path) == best
    with rejects(f'intact checkpoint in {tmp_path}'):
        newest_checkpoint(tmp_path, to_resume=True)


def test_the_best_checkpoint_of_a_work_dir_is_taken_and_named(tmp_path, capsys):
    """The best is what the run noted, whatever else has such a name; without it, the newest."""
    newest, best, other = (save(tmp_path / f'{name}.pth', dict(weights=torch.ones(1000)))
                           for name in ('epoch_9', 'best_mIoU_epoch_8', 'best_of_others'))
    os.utime(best, (1, 1))
    assert best_checkpoint(tmp_path) == other  # of mmengine, which notes nothing: the newest
    (tmp_path / 'last_checkpoint').write_text('epoch_9.pth')
    for notes, wanted, why in (
            (Notes('a', [newest.name], [best.name], 9), best, 'best of 9 validations: best_mIoU_epoch_8.pth'),
            (Notes('a', [newest.name], ['gone.pth', best.name]), best, 'best: best_mIoU_epoch_8.pth'),
            (Notes('a', [newest.name], ['gone.pth']), newest, 'newest, as gone.pth is missing or damaged: epoch_9.pth'),
            (Notes('a', [newest.name]), newest, 'newest, as this folder has no best one: epoch_9.pth')):
        write_notes(tmp_path, notes)
        capsys.readouterr()
        assert fetch(str(tmp_path)) == wanted
        assert capsys.readouterr().out.count(f'checkpoint of {tmp_path}: {why}\n') == 1
    write_notes(tmp_path, Notes('a', [newest.name], [best.name], 9))
    best.write_bytes(best.read_bytes()[:2000])
    assert fetch(str(tmp_path)) == newest == newest_checkpoint(tmp_path, to_resume=True)


@pytest.mark.parametrize('pointer', (b'\xff\xfe\x00', b'x' * 5000, b'a\0b.pth', b'', b'../epoch_9.pth'))
def test_a_pointer_that_is_no_name_is_left_out(pointer, tmp_path):
    path = save(tmp_path / 'epoch_1.pth', dense_state())
    (tmp_path / 'last_checkpoint').write_bytes(pointer)
    assert newest_checkpoint(tmp_path) == path


@pytest.mark.parametrize('write', (
    torch.save, safetensors_torch.save_file, lambda state, path: write_pickle({'a': state['a'].numpy()}, path)))
def test_tensors_come_to_the_device_that_is_asked_for(tmp_path, monkeypatch, write):
    def load(path, device='cpu', load=safetensors_torch.load_file):  # itself it knows no device without data
        return {name: value.to(device) for name, value in load(path).items()}

    monkeypatch.setattr(safetensors_torch, 'load_file', load)
    path, state = tmp_path / 'weights', {'a': torch.ones(2, 3)}
    write(state, path)
    assert read_checkpoint(path)['a'].device.type == 'cpu'
    assert read_checkpoint(path, map_location='meta')['a'].device.type == 'meta'
