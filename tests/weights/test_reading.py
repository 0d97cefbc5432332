"""Files are read without running anything in them."""
import argparse
import codecs
import os
import pickle
import time
import zipfile

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from safetensors import torch as safetensors_torch

from helpers.models import Bomb, assert_equal, dense_state, save
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import (
    fetch,
    find_state_dict,
    newest_checkpoint,
    read_checkpoint,
)


@pytest.mark.parametrize('content, words', (
    (b'', 'an empty file'),
    (b'<!DOCTYPE html><html>404</html>', 'an HTML page'),
    (b'  <html>404</html>', 'an HTML page'),
    (b'version https://git-lfs.github.com/spec/v1\n', 'a Git LFS pointer'),
    (b'101 Dalmatians\n', 'a text file'),
    (b'{"weights": 1}', 'a text file'),
    (b'weights {"a": 1}', 'a text file'),  # the brace where that of safetensors is
    (bytes(range(64)), 'a file of an unknown kind'),
    (b'PK\x03\x04broken', 'damaged'),
    (b'\x80\x02broken', 'damaged'),
    (b'\x20\0\0\0\0\0\0\0{"broken', 'damaged'),
))
def test_files_that_are_no_checkpoints_say_what_they_are(tmp_path, content, words):
    path = tmp_path / 'weights.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf'cannot read .*weights\.pth: .*{words}.*download it again'):
        read_checkpoint(path)


@pytest.mark.parametrize('write, words', (
    (torch.save, 'its end is missing'),
    (lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False), 'unexpected EOF'),
    (safetensors_torch.save_file, 'incomplete'),
    (lambda state, path: path.write_bytes(pickle.dumps({'a': state['a'].numpy()})), 'truncated'),
), ids=('torch', 'old torch', 'safetensors', 'pickle'))
@pytest.mark.parametrize('part', (10, 2))
def test_truncated_file(tmp_path, part, write, words):
    path = tmp_path / 'weights'
    write({'a': torch.rand(10_000)}, path)
    path.write_bytes(path.read_bytes()[:path.stat().st_size // part])
    with pytest.raises(CheckpointError, match=rf'weights: the file is damaged or incomplete \(.*{words}.*download it'):
        read_checkpoint(path)


def zip_archive(path):
    with zipfile.ZipFile(path, 'w') as file:
        file.writestr('readme.txt', 'hello')


@pytest.mark.parametrize('write, words', (
    (zip_archive, 'zip archive'),
    (lambda path: torch.jit.script(torch.nn.ReLU()).save(str(path)), r'TorchScript archive .save model\.state_dict'),
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
    with pytest.raises(CheckpointError, match='epoch'):
        find_state_dict(read_checkpoint(save(tmp_path / 'no.pth', {'epoch': 3})), 'no.pth')


class GetattrBomb:
    def __reduce__(self):
        return getattr, (HistoryBuffer, '__init__')


@pytest.mark.parametrize('pickler', ('torch', 'plain'))
def test_a_file_that_would_run_code_is_refused(tmp_path, pickler):
    path, trace = tmp_path / 'bomb.pth', tmp_path / 'trace'
    if pickler == 'torch':
        torch.save({'model': {}, 'x': Bomb(trace)}, path)
    else:
        path.write_bytes(pickle.dumps({'model': {}, 'x': Bomb(trace)}))
    with pytest.raises(CheckpointError, match='not allowed to hold'):
        read_checkpoint(path)
    assert not trace.exists()


def test_attribute_access_is_limited_to_what_log_buffers_hold(tmp_path):
    with pytest.raises(CheckpointError, match='not allowed to hold'):
        read_checkpoint(save(tmp_path / 'getattr.pth', {'x': GetattrBomb()}))


class Call:
    def __init__(self, function, *args):
        self.function, self.args = function, args

    def __reduce__(self):
        return self.function, self.args


@pytest.mark.parametrize('content', (
    Call(np.ndarray, (1, ), np.dtype('O8'), b'AAAAAAAA'),  # a pointer of the attacker's choice
    Call(np.ndarray, (1, )),
    np.dtype('O'),
    np.dtype([('a', 'f4')]),
    np.array([object], dtype=object),
    np.array(['text']),
    np.arange(3, dtype='>f4'),  # other numbers, if its bytes were taken in this machine's order
), ids=('pointer', 'array', 'object', 'fields', 'objects', 'text', 'byte order'))
def test_numpy_in_a_file_is_numbers_or_nothing(tmp_path, content):
    with pytest.raises(CheckpointError, match='not allowed to hold'):
        read_checkpoint(save(tmp_path / 'numpy.pth', {'x': content}))


@pytest.mark.parametrize('wrap', (lambda v: [v, v], lambda v: (v, v), lambda v: {'a': v, 'b': v}),
                         ids=('list', 'tuple', 'dict'))
@pytest.mark.parametrize('write', (torch.save, lambda content, path: path.write_bytes(pickle.dumps(content))),
                         ids=('torch', 'plain'))
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


def test_arrays_come_back(tmp_path):
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    read = read_checkpoint(save(tmp_path / 'array.pth', {'x': array, 'y': [np.asfortranarray(array)]}))
    assert np.array_equal(read['x'], array) and read['x'].dtype == np.int32 and np.array_equal(read['y'][0], array)


def test_log_buffers_of_mmengine_come_back(tmp_path):
    buffer = HistoryBuffer([1., 2., 4.], [1, 1, 2])
    path = save(tmp_path / 'hub.pth', {'buffer': buffer, 'number': np.float64(3.5), 'count': np.int64(7)})
    read = read_checkpoint(path)
    assert type(read['buffer']) is HistoryBuffer
    assert np.array_equal(read['buffer'].data[0], [1., 2., 4.]) and read['buffer'].mean(3) == buffer.mean(3)
    assert read['number'] == 3.5 and read['count'] == 7
    read['buffer'].update(5.)
    assert read['buffer'].current() == 5.
    save(tmp_path / 'again.pth', {'buffer': read['buffer']})
    assert read_checkpoint(tmp_path / 'again.pth')['buffer'].current() == 5.


@pytest.mark.parametrize('change', (
    dict(_log_history='text'), dict(_count_history=[1]), dict(max_length='long'), dict(max_length=None),
    dict(_log_history=argparse.Namespace(value='text')),
), ids=str)
def test_log_buffers_hold_numbers_or_are_refused(tmp_path, change):
    buffer = HistoryBuffer([1.], [1])
    buffer.__dict__.update(change)
    with pytest.raises(CheckpointError, match='not allowed to hold.*numbers'):
        read_checkpoint(save(tmp_path / 'hub.pth', {'buffer': buffer}))


def test_bytes_as_text_are_of_the_encoding_that_pickle_writes(tmp_path):
    path = tmp_path / 'x.pdparams'
    for encoding in ('latin1', 'utf-16'):
        path.write_bytes(pickle.dumps({'x': Call(codecs.encode, 'text', encoding)}, 2))
        if encoding == 'latin1':
            assert read_checkpoint(path)['x'] == b'text'
    with pytest.raises(CheckpointError, match='not allowed to hold.*utf-16'):
        read_checkpoint(path)


def test_log_buffers_are_not_built_by_hand(tmp_path):
    with pytest.raises(CheckpointError, match='not allowed to hold.*by hand'):
        read_checkpoint(save(tmp_path / 'hub.pth', {'buffer': Call(HistoryBuffer, ['text'], ['text'])}))


def test_newest_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match='no checkpoint in'):
        newest_checkpoint(tmp_path)
    for number in (9, 10):
        torch.save(dict(number=number), tmp_path / f'epoch_{number}.pth')
        os.utime(tmp_path / f'epoch_{number}.pth', (number, number))
    assert newest_checkpoint(tmp_path).name == 'epoch_10.pth'
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/run/epoch_9.pth')
    assert newest_checkpoint(tmp_path).name == 'epoch_9.pth'
    assert fetch(str(tmp_path)).name == 'epoch_9.pth'
    (tmp_path / 'last_checkpoint').unlink()
    torch.save(dict(number=8), tmp_path / 'best_mIoU_iter_8.pth')  # copied last
    assert newest_checkpoint(tmp_path).name == 'epoch_10.pth'


def test_damaged_and_best_checkpoints_are_left_out(tmp_path):
    """The newest intact one is read; a run continues from one with its optimizer, which the best do not have."""
    for number in (7, 8, 9):
        save(tmp_path / f'epoch_{number}.pth', dict(weights=torch.full((1000, ), float(number))))
        os.utime(tmp_path / f'epoch_{number}.pth', (number, number))
    (tmp_path / 'last_checkpoint').write_text(' epoch_8.pth\n')
    assert newest_checkpoint(tmp_path).name == 'epoch_8.pth'
    content = bytearray((tmp_path / 'epoch_8.pth').read_bytes())
    content[2000] ^= 1  # a bit of a tensor, which the checksum shows
    (tmp_path / 'epoch_8.pth').write_bytes(content)
    assert newest_checkpoint(tmp_path).name == 'epoch_9.pth'
    (tmp_path / 'epoch_9.pth').write_bytes((tmp_path / 'epoch_9.pth').read_bytes()[:2000])
    assert newest_checkpoint(tmp_path).name == 'epoch_7.pth'
    (tmp_path / 'epoch_7.pth').rename(tmp_path / 'best_mAP.pth')
    assert newest_checkpoint(tmp_path).name == 'best_mAP.pth'
    with pytest.raises(CheckpointError, match=f'intact checkpoint in {tmp_path}'):
        newest_checkpoint(tmp_path, to_resume=True)


@pytest.mark.parametrize('pointer', (b'\xff\xfe\x00', b'x' * 5000, b'a\0b.pth', b'', b'../epoch_9.pth'))
def test_a_pointer_that_is_no_name_is_left_out(pointer, tmp_path):
    path = save(tmp_path / 'epoch_1.pth', dense_state())
    (tmp_path / 'last_checkpoint').write_bytes(pointer)
    assert newest_checkpoint(tmp_path) == path


@pytest.mark.parametrize('kind', ('torch', 'safetensors', 'pickle'))
def test_tensors_come_to_the_device_that_is_asked_for(tmp_path, monkeypatch, kind):
    def load(path, device='cpu', load=safetensors_torch.load_file):  # itself it knows no device without data
        return {name: value.to(device) for name, value in load(path).items()}

    monkeypatch.setattr(safetensors_torch, 'load_file', load)
    path, state = tmp_path / 'weights', {'a': torch.ones(2, 3)}
    if kind == 'pickle':
        path.write_bytes(pickle.dumps({'a': np.ones((2, 3))}))
    else:
        (torch.save if kind == 'torch' else safetensors_torch.save_file)(state, path)
    assert read_checkpoint(path)['a'].device.type == 'cpu'
    assert read_checkpoint(path, map_location='meta')['a'].device.type == 'meta'
