"""Reading files safely, loading them strictly, and fetching them."""
import argparse
import hashlib
import http.server
import json
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import zipfile

import numpy as np
import pytest
import torch
from conftest import ROOT, TINY, TINY_CONFIG
from mmengine.logging import HistoryBuffer, MMLogger
from mmengine.model.weight_init import PretrainedInit
from mmengine.registry import MODELS, DefaultScope
from safetensors.torch import save_file
from weight_files import build, dense_state, official_state, prefixed, randomise, save

from xcit_dense.config.loading import load_config
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import (
    classes_of_checkpoint,
    fetch,
    fetching,
    find_state_dict,
    load_backbone,
    load_model,
    newest_checkpoint,
    read_checkpoint,
    zoo,
)


def values(model):
    return {n: v.clone() for n, v in model.state_dict().items()}


def same(got, wanted):
    return got.keys() == wanted.keys() and all(torch.equal(got[n], v) for n, v in wanted.items())


@pytest.fixture
def log():
    """What is written to mmengine's log."""
    lines = []

    class Handler(logging.Handler):

        def emit(self, record):
            lines.append(record.getMessage())

    logger, handler = MMLogger.get_current_instance(), Handler()
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


# Loading


@pytest.mark.parametrize('patch_size, said', ((8, '128 of 130 tensors'), (16, '134 of 145 tensors')))
def test_official_classifier_fills_all_but_the_pyramid(tmp_path, log, patch_size, said):
    model, state = build(patch_size), official_state(patch_size)
    fresh = values(model)
    load_backbone(model, save(tmp_path / 'in1k.pth', {'model': state}))
    assert same(values(model), {n: fresh[n] if n.startswith('fpn') else state[n] for n in fresh})
    line = log[-1]
    assert said in line and 'start fresh: fpn1' in line and '33 of the file are not needed' in line


@pytest.mark.parametrize('wrap', (
    lambda s: s,
    lambda s: {'state_dict': prefixed(s, 'backbone.') | {'neck.weight': torch.zeros(1)}},
    lambda s: {'state_dict': prefixed(s, 'module.')},
    lambda s: {'state_dict': prefixed(s, 'module.backbone.') | {'module.head.fc.weight': torch.zeros(1)}},
    lambda s: {'teacher': prefixed(s, 'backbone.') | {'head.mlp.0.weight': torch.zeros(1)},
               'student': prefixed(dense_state(), 'module.backbone.'), 'dino_loss': {'center': torch.zeros(1)},
               'args': argparse.Namespace(arch='xcit'), 'epoch': 1},
    lambda s: {'ema_state_dict': {'steps': torch.tensor(3), **prefixed(s, 'module.')}},
    lambda s: {'n_averaged': torch.tensor(3), **prefixed(s, 'module.')},
    lambda s: prefixed(s, 'encoder.') | {'fc.weight': torch.zeros(1)},
    lambda s: {'state_dict': prefixed(s, 'backbone.'),
               'ema_state_dict': prefixed(dense_state(), 'module.backbone.')},
    lambda s: {'model': s, 'model_ema': dense_state(), 'optimizer': {'state': {}, 'param_groups': []}},
    lambda s: prefixed(s, 'teacher.backbone.') | prefixed(dense_state(), 'student.backbone.'),
), ids=('bare', 'detector', 'module', 'module backbone', 'dino', 'ema alone', 'swa', 'encoder', 'averaged', 'deit',
        'halves'))
def test_wrapped_files_fill_everything(tmp_path, log, wrap):
    state, model = dense_state(), build()
    load_backbone(model, save(tmp_path / 'dense.pth', wrap(state)))
    assert same(values(model), state)
    assert '145 of 145 tensors' in log[-1] and 'fresh' not in log[-1]


def test_safetensors_load_and_say_what_is_missing_without_the_package(tmp_path, monkeypatch):
    state, model, path = dense_state(), build(), tmp_path / 'dense.safetensors'
    save_file(state, path)
    load_backbone(model, path)
    assert same(values(model), state)
    monkeypatch.setitem(sys.modules, 'safetensors', None)
    with pytest.raises(CheckpointError, match='pip install safetensors'):
        read_checkpoint(path)


@pytest.mark.parametrize('length', (0x80, 0x180, 0xa880))
def test_safetensors_are_known_whatever_the_length_of_their_header(length, tmp_path):
    """A pickle begins with 0x80 too."""
    path = tmp_path / 'a.safetensors'
    save_file({'a': torch.arange(3.)}, path)
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], 'little')
    path.write_bytes(length.to_bytes(8, 'little') + content[8:start].ljust(length) + content[start:])
    assert torch.equal(read_checkpoint(path)['a'], torch.arange(3.))


@pytest.mark.parametrize('kind', ('Pretrained', 'mmengine.Pretrained', PretrainedInit))
@pytest.mark.parametrize('wrap', (lambda cfg: cfg, lambda cfg: [cfg]), ids=('dict', 'list'))
def test_init_cfg_loads_strictly_through_init_weights(tmp_path, kind, wrap):
    path = save(tmp_path / 'in1k.pth', {'model': official_state()})
    model = build(init_cfg=wrap(dict(type=kind, checkpoint=str(path))))
    model.init_weights()
    assert torch.equal(model.blocks[2].gamma1, read_checkpoint(path)['model']['blocks.2.gamma1'])
    wrong = build(8, init_cfg=wrap(dict(type=kind, checkpoint=str(path))))
    with pytest.raises(CheckpointError, match='does not fit'):
        wrong.init_weights()


def test_prefix_chooses_among_several_models(tmp_path):
    first, second = dense_state(), dense_state()
    path = save(tmp_path / 'two.pth', {'state_dict': prefixed(first, 'a.net.') | prefixed(second, 'b.net.')})
    for prefix in ('b.net', 'b.net.'):
        model = build(init_cfg=dict(type='Pretrained', checkpoint=str(path), prefix=prefix))
        model.init_weights()
        assert same(values(model), second)
    with pytest.raises(CheckpointError, match='no XCiT weights.*under the prefix c'):
        load_backbone(model, path, 'c')
    with pytest.raises(CheckpointError, match=r"two\.pth holds several XCiT, .* a\.net\., b\.net\.; .*prefix='a\."):
        load_backbone(model, path)


@pytest.mark.parametrize('init_cfg', (
    dict(type='Pretrained'),
    dict(type='Pretrained', checkpoint=None),
    dict(type='Pretrained', checkpoint='a.pth', map_location='cuda'),
    [dict(type='TruncNormal', layer='Linear'), dict(type='Pretrained', checkpoint='a.pth')],
    [dict(type='Pretrained', checkpoint='a.pth'), dict(type='TruncNormal', layer='Linear')],
))
def test_init_cfg_that_cannot_be_followed_fails_at_construction(init_cfg):
    with pytest.raises(ValueError, match='init_cfg must be'):
        build(init_cfg=init_cfg)


def test_other_initialisers_stay_mmengines():
    model = build(init_cfg=[dict(type='Constant', layer='Linear', val=0.5)])
    model.init_weights()
    assert (model.blocks[0].mlp.fc1.weight == 0.5).all()


def test_fewer_levels_and_blocks_take_their_part_of_a_dense_file(tmp_path):
    state = dense_state()
    model = build(out_indices=(0, 1), out_strides=(8, 16))
    load_backbone(model, save(tmp_path / 'dense.pth', {'state_dict': state}))
    assert same(values(model), {n: state[n] for n in model.state_dict()})


@pytest.mark.parametrize('change, words', (
    (lambda s: s.pop('blocks.3.gamma2'), ('1 missing', 'blocks.3.gamma2')),
    (lambda s: s.update({'blocks.4.gamma1': torch.zeros(32)}), ('1 unknown', 'blocks.4.gamma1', '5 blocks')),
    (lambda s: s.update({'blocks.0.mlp.fc1.bias': torch.zeros(48)}), ('1 of another shape', '(48,)', '(128,)')),
    (lambda s: s.update(extra=torch.zeros(1)), ('unknown', 'extra')),
    (lambda s: s.update({'fpn2.0.weight': torch.zeros(32, 32, 2, 2)}), ('missing', 'fpn1.0.weight')),
), ids=('missing', 'deeper', 'wider', 'foreign', 'half a pyramid'))
def test_files_of_another_model_are_refused(tmp_path, change, words):
    model, state = build(), official_state()
    change(state)
    before = values(model)
    with pytest.raises(CheckpointError) as caught:
        load_backbone(model, save(tmp_path / 'other.pth', {'model': state}))
    assert all(word in str(caught.value) for word in (*words, 'other.pth')), caught.value
    assert same(values(model), before)


def test_errors_say_what_the_file_holds_and_what_was_wanted(tmp_path):
    path = save(tmp_path / 'p8.pth', {'model': official_state(8)})
    with pytest.raises(CheckpointError, match=r'p8\.pth does not fit the model: it holds an official ImageNet file of '
                       r'XCiT \(32 channels, 4 blocks, 4 heads, patch 8\) with classifier; wanted XCiT \(32 channels, '
                       r'4 blocks, 4 heads, patch 16\); '):
        load_backbone(build(16), path)
    path = save(tmp_path / 'resnet.pth', {'conv1.weight': torch.zeros(3), 'bn1.weight': torch.zeros(3)})
    with pytest.raises(CheckpointError, match=r'resnet\.pth holds no XCiT weights, but 2 tensors such as conv1\.w'):
        load_backbone(build(16), path)


# Whole models

#: Some names of the authors' whole models, as mmdet 2 and mmseg 0 wrote them.
OLD_NAMES = {
    'mmdet': ('backbone.fpn1.3.weight', 'neck.lateral_convs.0.conv.weight', 'neck.fpn_convs.3.conv.bias',
              'rpn_head.rpn_conv.weight', 'rpn_head.rpn_cls.weight', 'rpn_head.rpn_reg.bias',
              'roi_head.bbox_head.fc_cls.weight', 'roi_head.bbox_head.fc_reg.bias',
              'roi_head.bbox_head.shared_fcs.1.weight', 'roi_head.mask_head.convs.0.conv.weight',
              'roi_head.mask_head.upsample.weight', 'roi_head.mask_head.conv_logits.bias'),
    'mmseg': ('backbone.pos_embeder.token_projection.weight', 'neck.lateral_convs.0.conv.weight',
              'decode_head.conv_seg.weight', 'decode_head.scale_heads.0.0.conv.weight',
              'decode_head.scale_heads.3.4.bn.running_mean'),
}


def whole_model(scope):
    if scope == 'mmdet':
        cfg = load_config(TINY_CONFIG, pretrained=False)
    else:
        cfg = load_config(ROOT / 'configs/semfpn_xcit_n12_p16_small.py', cfg_options={
            'model.backbone.arch': dict(_delete_=True, **TINY), 'model.neck.in_channels': [32] * 4})
    with DefaultScope.overwrite_default_scope(scope):
        return MODELS.build(cfg.model)


@pytest.mark.parametrize('scope', OLD_NAMES)
def test_whole_models_of_old_frameworks_load_by_name(tmp_path, log, scope):
    model = whole_model(scope)
    state = values(randomise(whole_model(scope)))
    assert set(OLD_NAMES[scope]) <= set(state)
    path = save(tmp_path / 'old.pth', {
        'meta': {'CLASSES': ('cat', 'dog'), 'PALETTE': [[0, 0, 0], [1, 1, 1]], 'config': 'raise SystemExit\n'},
        'state_dict': prefixed(state, 'module.'), 'optimizer': {'state': {}, 'param_groups': []}})
    checkpoint = read_checkpoint(path)
    load_model(model, checkpoint, path)
    assert same(values(model), state)
    assert f'{len(state)} of {len(state)} tensors' in log[-1]
    assert classes_of_checkpoint(checkpoint, path) == ('cat', 'dog')


@pytest.mark.parametrize('content, words', (
    (lambda: {'model': official_state()}, 'it holds an official ImageNet file of XCiT .*with classifier; '
     'wanted a whole MaskRCNN'),
    (lambda: {'state_dict': prefixed(dense_state(8), 'backbone.') | {'decode_head.conv_seg.bias': torch.zeros(2)}},
     r'it holds a dense file of XCiT \(.* patch 8\) with pyramid, decode_head; wanted a whole MaskRCNN'),
    (lambda: {'weight': torch.zeros(2)}, 'it holds no XCiT weights, but 1 tensors such as weight'),
), ids=('classifier', 'segmentor', 'foreign'))
def test_whole_models_refuse_other_files_by_what_they_hold(content, words):
    with pytest.raises(CheckpointError, match=words):
        load_model(whole_model('mmdet'), content(), 'some.pth')


# Reading


@pytest.mark.parametrize('content, words', (
    (b'', 'an empty file'),
    (b'<!DOCTYPE html><html>404</html>', 'an HTML page'),
    (b'  <html>404</html>', 'an HTML page'),
    (b'version https://git-lfs.github.com/spec/v1\n', 'the pointer of Git LFS'),
    (b'101 Dalmatians\n', 'a text file'),
    (b'{"weights": 1}', 'a text file'),
    (bytes(range(64)), 'a file of an unknown kind'),
    (b'PK\x03\x04broken', 'damaged or cut off'),
    (b'\x80\x02broken', 'damaged or cut off'),
    (b'\x20\0\0\0\0\0\0\0{"broken', 'damaged or cut off'),
))
def test_files_that_are_no_checkpoints_say_what_they_are(tmp_path, content, words):
    path = tmp_path / 'weights.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf'cannot read .*weights\.pth: .*{words}.*fetch it again'):
        read_checkpoint(path)


def test_truncated_file(tmp_path):
    path = save(tmp_path / 'weights.pth', {'model': {'a': torch.rand(1000)}})
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(CheckpointError, match=r'weights\.pth: the file is damaged or cut off'):
        read_checkpoint(path)


def zip_archive(path):
    with zipfile.ZipFile(path, 'w') as file:
        file.writestr('readme.txt', 'hello')


@pytest.mark.parametrize('write, words', (
    (zip_archive, 'it is a zip archive, not a checkpoint'),
    (lambda path: torch.jit.script(torch.nn.ReLU()).save(str(path)), r'TorchScript archive .save model\.state_dict'),
    (lambda path: torch.save(torch.nn.Linear(2, 2), path),
     r'refused: torch\.nn\.modules\.linear\.Linear\. .* save model\.state_dict\(\) instead'),
    (lambda path: torch.save({'f': Call(os.getcwd)}, path), r'refused: posix\.getcwd\. '),
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
    assert wrap(0) == type(value)({'a': 0, 'b': 0} if isinstance(value, dict) else (0, 0))


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
    with pytest.raises(CheckpointError, match='refused: a log buffer of other things than numbers'):
        read_checkpoint(save(tmp_path / 'hub.pth', {'buffer': buffer}))


def test_log_buffers_are_not_built_by_hand(tmp_path):
    with pytest.raises(CheckpointError, match='refused: a log buffer built by hand'):
        read_checkpoint(save(tmp_path / 'hub.pth', {'buffer': Call(HistoryBuffer, ['text'], ['text'])}))


@pytest.mark.parametrize('beside', ('other.weight', 'weight'))
def test_nothing_beside_module_is_lost(beside):
    state = {'module.weight': torch.zeros(2, 3), 'module.bias': torch.zeros(2), beside: torch.zeros(2, 3)}
    with pytest.raises(CheckpointError, match=r'1 unknown to the model .*weight'):
        load_model(torch.nn.Linear(3, 2), {'state_dict': state}, 'some.pth')


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
        torch.save(dict(number=number), tmp_path / f'epoch_{number}.pth')
        os.utime(tmp_path / f'epoch_{number}.pth', (number, number))
    assert newest_checkpoint(tmp_path).name == 'epoch_10.pth'
    (tmp_path / 'last_checkpoint').write_text('/elsewhere/run/epoch_9.pth')
    assert newest_checkpoint(tmp_path).name == 'epoch_9.pth'
    assert fetch(str(tmp_path)).name == 'epoch_9.pth'
    (tmp_path / 'last_checkpoint').unlink()
    torch.save(dict(number=8), tmp_path / 'best_mIoU_iter_8.pth')  # copied last
    assert newest_checkpoint(tmp_path).name == 'epoch_10.pth'


@pytest.mark.parametrize('pointer', (b'\xff\xfe\x00', b'x' * 5000, b'a\0b.pth', b'', b'../epoch_9.pth'))
def test_a_pointer_that_is_no_name_is_left_out(pointer, tmp_path):
    path = save(tmp_path / 'epoch_1.pth', dense_state())
    (tmp_path / 'last_checkpoint').write_bytes(pointer)
    assert newest_checkpoint(tmp_path) == path


def test_zoo_holds_every_published_file():
    published = json.loads((ROOT / 'tests/golden/published.json').read_text())
    wanted = {row['url']: row for row in published['imagenet'] + published['dense']}
    weights = {record.url: record for record in zoo.WEIGHTS.values()}
    assert len(published['imagenet']) == 46 and len(published['dense']) == 24
    assert weights.keys() == wanted.keys()
    for url, row in wanted.items():
        record = weights[url]
        assert f'xcit_{record.arch}' == row['arch']
        assert record.published == {metric: row[metric] for metric in record.published}
        assert record.published.keys() == {'top1', 'knn', 'linear', 'box_ap', 'mask_ap', 'miou'} & row.keys()


def test_names_of_published_files():
    assert zoo.get_weights('xcit://small_12_p8_384_dist').url == \
        'https://dl.fbaipublicfiles.com/xcit/xcit_small_12_p8_384_dist.pth'
    assert zoo.get_weights('maskrcnn_small_12_p8').arch == 'small_12_p8'
    with pytest.raises(CheckpointError, match='small_12_p9.*did you mean small_12_p'):
        zoo.get_weights('xcit://small_12_p9_384_dist')


# Fetching


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
    threading.Thread(target=server.serve_forever, args=(0.02, ), daemon=True).start()
    yield folder, f'http://127.0.0.1:{server.server_port}', Handler.requests
    server.shutdown()
    server.server_close()


def cached(tmp_path):
    return [path for path in (tmp_path / 'hub').rglob('*') if path.is_file()]


def publish(monkeypatch, url, **fields):
    monkeypatch.setitem(zoo.WEIGHTS, 'test', zoo.Weights('nano_12_p16', url, {}, **fields))


def test_addresses_are_fetched_once_and_read_offline(server, tmp_path, capsys):
    folder, address, requests = server
    save(folder / 'in1k.pth', {'model': official_state()})
    load_backbone(build(), f'{address}/in1k.pth')
    assert '100%' in capsys.readouterr().err  # the progress bar
    (folder / 'in1k.pth').unlink()
    load_backbone(build(), f'{address}/in1k.pth')
    assert requests == ['/in1k.pth'] and len(cached(tmp_path)) == 1


def test_addresses_with_one_file_name_stay_apart(server, tmp_path):
    folder, address, _ = server
    for name in ('a', 'b'):
        (folder / name).mkdir()
        save(folder / name / 'in1k.pth', {'model': {name: torch.zeros(1)}})
    for name in ('a', 'b', 'a'):
        assert list(read_checkpoint(f'{address}/{name}/in1k.pth')['model']) == [name]


def test_published_files_lie_under_their_own_name_where_torch_caches(server, tmp_path, monkeypatch):
    folder, address, _ = server
    save(folder / 'in1k.pth', {'model': official_state()})
    publish(monkeypatch, f'{address}/in1k.pth', sha256=hashlib.sha256((folder / 'in1k.pth').read_bytes()).hexdigest())
    assert fetch('xcit://test') == fetch(f'{address}/in1k.pth') == tmp_path / 'hub/checkpoints/in1k.pth'
    # a file put there by hand, as the error message says, needs no network
    publish(monkeypatch, 'http://127.0.0.1:9/in1k.pth')
    load_backbone(build(), 'xcit://test')


@pytest.mark.parametrize('name, words', (
    ('missing.pth', '404'),
    ('cut.pth', 'broke off after 1000 of 100000 bytes'),
    ('page.pth', 'what came is an HTML page'),
    ('empty.pth', 'what came is an empty file'),
    ('weights-0123abcd.pth', 'SHA-256 .* not 0123abcd'),
    ('known.pth', 'SHA-256 .* not 00000000'),
))
def test_what_cannot_be_fetched_leaves_nothing_and_names_the_mend(server, tmp_path, monkeypatch, name, words):
    folder, address, _ = server
    (folder / 'page.pth').write_text('<html>log in first</html>')
    (folder / 'empty.pth').touch()
    for weights in ('weights-0123abcd.pth', 'known.pth'):
        save(folder / weights, {'model': official_state()})
    publish(monkeypatch, f'{address}/known.pth', sha256='0' * 64)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_backbone(build(), f'{address}/{name}')
    message = str(caught.value)
    assert f'{address}/{name}' in message and '--no-pretrained' in message
    place = message.partition('put the file at ')[2].partition(', or')[0]
    assert place.startswith(str(tmp_path / 'hub/checkpoints')) and place.endswith(f'/{name}')
    assert cached(tmp_path) == []


@pytest.mark.parametrize('name', (
    'weights-{}.pth', 'weights-20210609.pth', 'weights-20210609123000.pth', 'weights-1234567890.pth'))
def test_hashes_in_file_names_are_checked_but_not_dates(server, name):
    folder, address, _ = server
    source = save(folder / 'weights.pth', {'model': official_state()})
    name = name.format(hashlib.sha256(source.read_bytes()).hexdigest()[:10])
    source.rename(folder / name)
    assert fetch(f'{address}/{name}').name == name


@pytest.mark.parametrize('source, words', (
    ('https://host/', 'does not end in the name of a file'),
    ('https://host', 'does not end in the name of a file'),
    ('https://host/..', 'does not end in the name of a file'),
    ('https://[::1/x.pth', r'https://\[::1/x\.pth is not an address: Invalid IPv6'),
    ('HTTP://127.0.0.1:9/xcit.pth', 'weights http://.*--no-pretrained'),
    ('http://host/xcit.pth', 'without encryption.*use https'),
    ('http://127.0.0.1.host/xcit.pth', 'without encryption.*use https'),
    ('no/such/file.pth', 'there is no file .*no/such/file.pth'),
    ('a' * 1000, 'there is no file'),
    ('http://127.0.0.1:9/xcit.pth', '--no-pretrained'),  # nothing listens there
))
def test_sources_that_are_none(source, words):
    with pytest.raises(CheckpointError, match=words):
        fetch(source)


def test_cache_that_cannot_be_written_is_one_error(server, tmp_path):
    folder, address, _ = server
    save(folder / 'in1k.pth', {'model': official_state()})
    (tmp_path / 'hub').write_text('a file where the folder should be')
    with pytest.raises(CheckpointError, match='cannot fetch the weights'):
        fetch(f'{address}/in1k.pth')


def test_a_process_waits_for_the_first_before_there_is_a_group(server, tmp_path, monkeypatch):
    folder, address, requests = server
    source, address = save(folder / 'in1k.pth', {'model': official_state()}), f'{address}/in1k.pth'
    path = fetch(address)
    path.unlink()
    monkeypatch.setenv('LOCAL_RANK', '1')
    threading.Timer(0.5, lambda: os.replace(source, path)).start()  # what the first process does
    assert fetch(address) == path
    path.unlink()
    monkeypatch.setattr(fetching, '_PATIENCE', 0.1)
    with pytest.raises(CheckpointError, match='see the first process of this machine'):
        fetch(address)
    assert len(requests) == 1


def test_distributed_runs_fetch_once_on_every_machine(server, tmp_path):
    """Two processes on one machine, one on another, which has a cache of its own."""
    folder, address, requests = server
    save(folder / 'in1k.pth', {'model': official_state()})
    code = """
import sys
import torch
from xcit_dense.weights import read_checkpoint
torch.distributed.init_process_group('gloo', f'file://{sys.argv[1]}/meeting', rank=int(sys.argv[2]), world_size=3)
read_checkpoint(sys.argv[3])
torch.distributed.destroy_process_group()
"""
    processes = [subprocess.Popen([sys.executable, '-c', code, str(tmp_path), str(rank), f'{address}/in1k.pth'],
                                  env={**os.environ, 'LOCAL_RANK': local_rank, 'TORCH_HOME': str(tmp_path / machine)},
                                  text=True, stderr=subprocess.PIPE)
                 for rank, (local_rank, machine) in enumerate((('0', 'a'), ('1', 'a'), ('0', 'b')))]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert len(requests) == 2


def test_redirects_follow_the_rule_for_addresses(server, tmp_path, monkeypatch):
    folder, address, requests = server
    save(folder / 'in1k.pth', {'model': official_state()})
    resolve, port = socket.getaddrinfo, address.rpartition(':')[2]
    monkeypatch.setattr(socket, 'getaddrinfo', lambda host, *rest, **named: resolve('127.0.0.1', *rest, **named))

    class Redirect(http.server.BaseHTTPRequestHandler):

        def do_GET(self):
            self.send_response(302)
            self.send_header('Location', self.path.partition('?to=')[2])
            self.end_headers()

    with http.server.ThreadingHTTPServer(('127.0.0.1', 0), Redirect) as second:
        threading.Thread(target=second.serve_forever, args=(0.02, ), daemon=True).start()
        start = f'http://127.0.0.1:{second.server_port}/in1k.pth?to='
        for target in (f'http://weights.host:{port}/in1k.pth', f'ftp://127.0.0.1:{port}/in1k.pth',
                       f'{start}http://weights.host:{port}/in1k.pth'):
            with pytest.raises(CheckpointError) as caught:
                fetch(start + target)
            refused = target.rpartition('?to=')[2]
            assert f': {refused} comes without encryption' in str(caught.value), caught.value
        assert requests == cached(tmp_path) == []
        assert fetch(f'{start}{address}/in1k.pth').is_file() and requests == ['/in1k.pth']
        second.shutdown()


def test_a_user_name_is_no_host():
    with pytest.raises(CheckpointError, match='without encryption'):
        fetch('http://127.0.0.1:secret@host/xcit.pth')
