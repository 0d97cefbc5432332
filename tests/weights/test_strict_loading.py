"""A tensor with the right name is loaded if it can be a weight; otherwise an error comes before anything changes."""
import argparse
from fractions import Fraction

import pytest
import torch

from helpers.models import build, dense_state, official_state, save
from helpers.weight_files import classifier, dino, rejects
from xcit_dense.weights import load_backbone, load_classifier, load_model, read_checkpoint
from xcit_dense.weights.layouts import LAYOUTS, from_official


def load_whole(model, path):
    load_model(model, read_checkpoint(path), path)


@pytest.mark.parametrize('change, words', (
    (lambda v: v.long(), 'int64'),
    (lambda v: v > 0, 'bool'),
    (lambda v: v.to(torch.complex64), 'complex'),
    (lambda v: v.to(torch.bfloat16).view(torch.uint16), 'uint16, which is how PaddlePaddle stores bfloat16'),
    (lambda v: v * float('nan'), 'NaN'),
    (lambda v: v.index_fill(0, torch.tensor([1]), float('nan')), 'NaN'),
    (lambda v: v.index_fill(0, torch.tensor([1]), -float('inf')), 'infinite'),
    (lambda v: v.to_sparse(), 'sparse'),
    (lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8), 'quantised'),
    (lambda v: v.to('meta'), 'without data'),
    (lambda v: v.to_sparse_csr() if v.dim() == 2 else v.to_sparse(), 'sparse'),
    (lambda v: torch.nested.nested_tensor([v, v]), 'nested'),
))
@pytest.mark.parametrize('load', (load_backbone, load_whole))
def test_tensors_that_are_no_weights_change_nothing(load, change, words, tmp_path):
    """The last tensor of the file, so that all others would have been loaded before it."""
    state = {n: v for n, v in dense_state().items() if v.dtype == torch.float32}
    name = list(state)[-1]
    path, model = save(tmp_path / 'odd.pth', {**state, name: change(state[name])}), build()
    with rejects(path, f'{name}: {words}', model=model):
        load(model, path)


def remove(name):
    return lambda state: state.pop(name)


def put(name, *shape):
    return lambda state: state.update({name: torch.zeros(shape)})


BACKBONE, CLASSIFIER, DINO = (build, load_backbone, None), (classifier, load_classifier, None), (
    (build, load_backbone, ''), (build, load_backbone, 'student'), (classifier, load_classifier, 'teacher.backbone'))


@pytest.mark.parametrize('kind, load, prefix, change, words', [(*way, *row) for ways, *row in (
    ((BACKBONE, *DINO), remove('blocks.3.gamma2'), ('1 missing', 'blocks.3.gamma2')),
    ((BACKBONE, *DINO), put('blocks.4.gamma1', 32), ('1 unknown', 'blocks.4.gamma1')),
    ((BACKBONE, *DINO), put('blocks.0.mlp.fc1.bias', 48), ('1 of another shape', '(48,)', '(128,)')),
    ((BACKBONE, ), put('blocks.4.gamma1', 32), ('5 blocks', )),
    ((BACKBONE, ), put('extra', 1), ('unknown', 'extra')),
    ((BACKBONE, ), put('fpn2.0.weight', 32, 32, 2, 2), ('missing', 'fpn1.0.weight')),
    (DINO, lambda s: s['blocks.0.gamma1'].fill_(torch.nan), ('blocks.0.gamma1: NaN', )),
    (DINO, lambda s: s.update({'blocks.0.gamma1': torch.zeros(32).to_sparse()}), ('blocks.0.gamma1: sparse', )),
    ((CLASSIFIER, ), remove('cls_token'), ('1 missing', 'cls_token')),
    ((CLASSIFIER, ), remove('norm.weight'), ('norm.weight', )),
    ((CLASSIFIER, ), remove('head.weight'), ('1 missing', 'head.weight')),
    ((CLASSIFIER, ), put('head.weight', 10, 31), ('head.weight (10, 31)', '(10, 32)')),
    ((CLASSIFIER, ), put('cls_token', 1, 1, 31), ('cls_token (1, 1, 31)', )),
    ((CLASSIFIER, ), lambda s: s['cls_token'].fill_(torch.nan), ('cls_token: NaN', )),
    ((CLASSIFIER, ), put('cls_attn_blocks.2.gamma1', 32), ('1 unknown', 'cls_attn_blocks.2.gamma1')),
    ((CLASSIFIER, ), lambda s: [s.pop(n) for n in list(s) if n.startswith(('cls', 'norm', 'head'))],
     ('the dense layout', 'cls_token', 'with classifier'))) for way in ways])
def test_files_of_another_model_are_rejected(kind, load, prefix, change, words, tmp_path):
    """Also one of the two models of a run of DINO. The model stays as it was."""
    states, model = (official_state(), official_state()), kind()
    for state in states:
        change(state)
    path = save(tmp_path / 'odd.pth', {'model': states[0]} if prefix is None else {'state_dict': dino(*states)})
    title = '' if prefix is None else f'the {(prefix or "teacher").partition(".")[0]} of '
    with rejects(f'{title}{path}', *words, model=model):
        load(model, path, prefix)


def test_floating_types_convert(tmp_path):
    """Counters too, which some tools save with the rest."""
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn):
        state, model = {n: v.to(dtype) for n, v in dense_state().items()}, build()
        load_backbone(model, save(tmp_path / 'other.pth', state))
        for name, value in model.state_dict().items():
            assert torch.equal(value, state[name].to(value.dtype)), (dtype, name)


def test_infinite_buffers_and_large_weights_are_loaded():
    model = torch.nn.Linear(2, 2)
    model.register_buffer('mask', torch.zeros(2))
    large = torch.full((2, 2), 3e38)  # the sum is infinite
    load_model(model, {'mask': torch.tensor([0, -float('inf')]), 'weight': large, 'bias': large[0]}, 'file')
    assert model.mask.isinf().any() and torch.equal(model.weight, large)


def test_a_parameter_of_two_names_is_one_under_both():
    model = torch.nn.Module()
    model.first = model.second = torch.nn.Linear(2, 2, bias=False)
    with rejects('second.weight: infinite', model=model):
        load_model(model, {'first.weight': torch.zeros(2, 2), 'second.weight': torch.full((2, 2), torch.inf)}, 'file')


@pytest.mark.parametrize('kind, value, words', (
    ('num_batches_tracked', float('nan'), 'not finite'), ('running_var', -1e-3, 'negative'),
    ('running_var', float('inf'), 'infinite'), ('running_mean', -float('inf'), 'infinite')))
def test_statistics_are_possible(tmp_path, kind, value, words):
    state = dense_state()
    name = [name for name in state if name.endswith(kind)][-1]
    path = save(tmp_path / 'odd.pth', {**state, name: state[name].float().index_fill(-1, torch.tensor([0]), value)})
    for load in (load_backbone, load_whole):
        with rejects(f'{name}: {words}'):
            load(build(), path)


@pytest.mark.parametrize('name', ('blocks.0.mlp.fc1.weight', 'head.weight'))
def test_sparse_tensors_of_layouts_that_transpose(name, tmp_path):
    state, _ = from_official(official_state(), {}, LAYOUTS['dense'])
    state |= {n: v for n, v in official_state().items() if n.startswith('head')}
    path = save(tmp_path / 'odd.pth', {n.replace('running_mean', '_mean'): v.to_sparse() if n.endswith(name) else v
                                       for n, v in state.items()})
    with rejects(f'{name}: sparse'):
        load_backbone(build(), path)


@pytest.mark.parametrize('layout, doubled', (
    ('timm', ('pos_embeder.token_projection.weight', 'pos_embed.token_projection.weight')),
    ('mmpretrain', ('xca_layers.0.ffn.layers.1.bias', 'xca_layers.0.mlp.fc2.bias')),
))
def test_two_names_of_one_tensor_are_refused(layout, doubled, tmp_path):
    state, _ = from_official(dense_state(), {}, LAYOUTS[layout])
    state = {n.removeprefix('backbone.'): v for n, v in state.items()}
    present = next(name for name in doubled if name in state)
    state |= {name: state[present] + 1 for name in doubled if name != present}
    with rejects(*doubled, 'two.pth'):
        load_backbone(build(), save(tmp_path / 'two.pth', state))


def test_what_a_user_allows_torch_to_read_stays_allowed(tmp_path):
    """By class, and by the names of this package's own stand-ins."""
    allowed = [argparse.Namespace, (dict, 'mmengine.logging.history_buffer.HistoryBuffer'), Fraction]
    path = save(tmp_path / 'own.pth', {**dense_state(), 'note': argparse.Namespace(lr=1)})
    with torch.serialization.safe_globals(allowed):
        before = torch.serialization.get_safe_globals()
        read_checkpoint(path)
        assert set(torch.serialization.get_safe_globals()) == set(before)
        with rejects():
            read_checkpoint(save(tmp_path / 'code.pth', {'x': save}))
        assert set(torch.serialization.get_safe_globals()) == set(before)
