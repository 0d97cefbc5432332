"""Reading files safely, loading them strictly, and fetching them."""
import http.server
import os
import pickle
import threading

import numpy as np
import pytest
import torch
from conftest import TINY
from mmengine.logging import HistoryBuffer

from xcit_dense import XCiT, arch_names, zoo
from xcit_dense.checkpoint import (
    classes_of_checkpoint,
    fetch,
    find_state_dict,
    load_backbone,
    load_model,
    newest_checkpoint,
    read_checkpoint,
)
from xcit_dense.errors import CheckpointError


def build(patch_size=16, **options):
    return XCiT(dict(TINY, patch_size=patch_size), norm_cfg=dict(type='BN'), **options)


def classifier_state(model):
    """What the authors' ImageNet file of this size holds, with random values."""
    state = {n: torch.rand_like(v) if v.is_floating_point() else v for n, v in model.state_dict().items()
             if not n.startswith('fpn')}
    state['cls_token'] = torch.rand(1, 1, 32)
    for name in ('cls_attn_blocks.0.attn.qkv.weight', 'norm.weight', 'head.weight', 'head.bias'):
        state[name] = torch.rand(32)
    return state


def save(path, content):
    torch.save(content, path)
    return path


def test_official_classifier_fills_all_but_the_pyramid(tmp_path):
    model = build()
    state = classifier_state(model)
    fresh = {n: v.clone() for n, v in model.state_dict().items() if n.startswith('fpn')}
    load_backbone(model, save(tmp_path / 'in1k.pth', {'model': state}))
    for name, value in model.state_dict().items():
        assert torch.equal(value, fresh[name] if name.startswith('fpn') else state[name]), name


@pytest.mark.parametrize('wrap', (
    lambda s: {'state_dict': {f'backbone.{n}': v for n, v in s.items()} | {'neck.weight': torch.zeros(1)}},
    lambda s: {'state_dict': {f'module.backbone.{n}': v for n, v in s.items()}},
    lambda s: s,
), ids=('detector', 'module', 'bare'))
def test_dense_files_fill_the_pyramid_too(tmp_path, wrap):
    source, model = build(), build()
    with torch.no_grad():
        for value in source.parameters():
            value.uniform_()
    load_backbone(model, save(tmp_path / 'dense.pth', wrap(source.state_dict())))
    assert all(torch.equal(v, source.state_dict()[n]) for n, v in model.state_dict().items())


def test_init_cfg_loads_through_init_weights(tmp_path):
    source = build()
    state = classifier_state(source)
    path = save(tmp_path / 'in1k.pth', {'model': state})
    model = build(init_cfg=dict(type='Pretrained', checkpoint=str(path)))
    model.init_weights()
    assert torch.equal(model.blocks[2].gamma1, state['blocks.2.gamma1'])


def test_fewer_levels_and_blocks_take_their_part_of_a_dense_file(tmp_path):
    source = build()
    path = save(tmp_path / 'dense.pth', {'state_dict': source.state_dict()})
    model = build(out_indices=(0, 1), out_strides=(8, 16))
    load_backbone(model, path)
    assert torch.equal(model.fpn2[0].weight, source.fpn2[0].weight)


@pytest.mark.parametrize('change, words', (
    (lambda s: s.pop('blocks.3.gamma2'), ('1 missing', 'blocks.3.gamma2')),
    (lambda s: s.update({'blocks.4.gamma1': torch.zeros(32)}), ('1 unknown', 'blocks.4.gamma1')),
    (lambda s: s.update({'blocks.0.gamma1': torch.zeros(48)}), ('1 of another shape', '(48,)', '(32,)')),
    (lambda s: s.update(extra=torch.zeros(1)), ('unknown', 'extra')),
), ids=('missing', 'deeper', 'wider', 'foreign'))
def test_files_of_another_model_are_refused(tmp_path, change, words):
    model = build()
    state = classifier_state(model)
    change(state)
    before = {n: v.clone() for n, v in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_backbone(model, save(tmp_path / 'other.pth', {'model': state}))
    assert all(word in str(caught.value) for word in (*words, 'other.pth')), caught.value
    assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())


def test_patch_8_file_in_a_patch_16_model_is_refused(tmp_path):
    path = save(tmp_path / 'p8.pth', {'model': classifier_state(build(8))})
    with pytest.raises(CheckpointError, match='does not fit'):
        load_backbone(build(16), path)


@pytest.mark.parametrize('content', (b'', b'<!DOCTYPE html><html>404</html>', b'PK\x03\x04broken'))
def test_damaged_files_name_themselves(tmp_path, content):
    path = tmp_path / 'weights.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r'cannot read .*weights\.pth'):
        read_checkpoint(path)


def test_truncated_file(tmp_path):
    path = save(tmp_path / 'weights.pth', {'model': {'a': torch.rand(1000)}})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match='weights.pth'):
        read_checkpoint(path)


def test_file_without_weights(tmp_path):
    with pytest.raises(CheckpointError, match='epoch'):
        find_state_dict(read_checkpoint(save(tmp_path / 'no.pth', {'epoch': 3})), 'no.pth')


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path), )


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
    with pytest.raises(CheckpointError, match='refused'):
        read_checkpoint(path)
    assert not trace.exists()


def test_attribute_access_is_limited_to_what_log_buffers_hold(tmp_path):
    with pytest.raises(CheckpointError, match='refused'):
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
), ids=('pointer', 'array', 'object', 'fields', 'objects', 'text'))
def test_numpy_in_a_file_is_numbers_or_nothing(tmp_path, content):
    with pytest.raises(CheckpointError, match='refused'):
        read_checkpoint(save(tmp_path / 'numpy.pth', {'x': content}))


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


def test_whole_models_load_strictly(tmp_path):
    model = torch.nn.Linear(3, 2)
    with pytest.raises(CheckpointError, match='1 missing in the file .bias.*1 unknown to the model .scale'):
        load_model(model, {'state_dict': {'weight': torch.zeros(2, 3), 'scale': torch.zeros(2)}}, 'some.pth')


def test_classes_of_checkpoint():
    assert classes_of_checkpoint({'meta': {'dataset_meta': {'classes': ['a', 'b']}}}, 'x') == ('a', 'b')
    with pytest.raises(CheckpointError, match='class names'):
        classes_of_checkpoint({'meta': {}}, 'x')


def test_newest_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match='no checkpoint in'):
        newest_checkpoint(tmp_path)
    for number in (9, 10):
        (tmp_path / f'epoch_{number}.pth').touch()
        os.utime(tmp_path / f'epoch_{number}.pth', (number, number))
    assert newest_checkpoint(tmp_path).name == 'epoch_10.pth'
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/run/epoch_9.pth')
    assert newest_checkpoint(tmp_path).name == 'epoch_9.pth'
    assert fetch(str(tmp_path)).name == 'epoch_9.pth'


def test_zoo_names_every_imagenet_file():
    assert len(zoo.WEIGHTS) == len(arch_names()) * 3
    assert zoo.address('xcit://small_12_p8_384_dist') == \
        'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
    with pytest.raises(CheckpointError, match='small_12_p9'):
        zoo.address('xcit://small_12_p9')


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server over a folder, and an empty download cache."""
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path / 'hub'))
    folder = tmp_path / 'www'
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        requests = []

        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            self.requests.append(self.path)

        def do_GET(self):
            if self.path.startswith('/cut'):  # promises more than it sends
                self.send_response(200)
                self.send_header('Content-Length', '100000')
                self.end_headers()
                self.wfile.write(b'x' * 1000)
            else:
                super().do_GET()

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f'http://127.0.0.1:{server.server_port}', Handler.requests
    server.shutdown()
    server.server_close()


def test_addresses_are_fetched_once(server, tmp_path):
    folder, address, requests = server
    source = build()
    save(folder / 'in1k.pth', {'model': classifier_state(source)})
    for _ in range(2):
        load_backbone(build(), f'{address}/in1k.pth')
    assert len(requests) == 1
    assert (tmp_path / 'hub/checkpoints/in1k.pth').is_file()


@pytest.mark.parametrize('name', ('missing.pth', 'cut.pth'))
def test_what_cannot_be_fetched_leaves_nothing_and_names_the_mend(server, tmp_path, name):
    _, address, _ = server
    with pytest.raises(CheckpointError) as caught:
        load_backbone(build(), f'{address}/{name}')
    for word in (f'{address}/{name}', str(tmp_path / 'hub/checkpoints' / name), '--no-pretrained'):
        assert word in str(caught.value)
    assert list((tmp_path / 'hub/checkpoints').iterdir()) == []


def test_no_network_is_one_error(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path))
    with pytest.raises(CheckpointError, match='--no-pretrained'):
        fetch('http://127.0.0.1:9/xcit.pth')  # nothing listens there
