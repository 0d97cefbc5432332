"""A tensor with the right name is loaded if it can be a weight; otherwise an error comes before anything changes."""
import argparse
import copy
from fractions import Fraction

import pytest
import torch

from helpers.models import build, dense_state, official_state, save
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import load_backbone, load_model, read_checkpoint
from xcit_dense.weights.layouts import LAYOUTS, from_official


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
@pytest.mark.parametrize('whole', (False, True))
def test_tensors_that_are_no_weights_change_nothing(whole, change, words, tmp_path):
    """The last tensor of the file, so that all others would have been loaded before it."""
    state = {n: v for n, v in dense_state().items() if v.dtype == torch.float32}
    name = list(state)[-1]
    path = save(tmp_path / 'odd.pth', {**state, name: change(state[name])})
    model = build()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckpointError) as caught:
        if whole:
            load_model(model, read_checkpoint(path), path)
        else:
            load_backbone(model, path)
    assert all(word in str(caught.value) for word in (str(path), f'{name}: {words}')), caught.value
    assert all(torch.equal(value, before[n]) for n, value in model.state_dict().items())


@pytest.mark.parametrize('dtype', (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn))
def test_floating_types_convert(dtype, tmp_path):
    """Counters too, which some tools save with the rest."""
    state = {n: v.to(dtype) for n, v in dense_state().items()}
    model = build()
    load_backbone(model, save(tmp_path / 'other.pth', state))
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name].to(value.dtype)), name


def test_infinite_buffers_and_large_weights_are_loaded():
    model = torch.nn.Linear(2, 2)
    model.register_buffer('mask', torch.zeros(2))
    large = torch.full((2, 2), 3e38)  # the sum is infinite
    load_model(model, {'mask': torch.tensor([0, -float('inf')]), 'weight': large, 'bias': large[0]}, 'file')
    assert model.mask.isinf().any() and torch.equal(model.weight, large)


def test_a_parameter_of_two_names_is_one_under_both():
    model = torch.nn.Module()
    model.first = model.second = torch.nn.Linear(2, 2, bias=False)
    state = {'first.weight': torch.zeros(2, 2), 'second.weight': torch.full((2, 2), float('inf'))}
    before = model.first.weight.clone()
    with pytest.raises(CheckpointError, match='second.weight: infinite'):
        load_model(model, state, 'file')
    assert torch.equal(model.first.weight, before)


@pytest.mark.parametrize('kind, value, words', (
    ('num_batches_tracked', float('nan'), 'not finite'), ('running_var', -1e-3, 'negative'),
    ('running_var', float('inf'), 'infinite'), ('running_mean', -float('inf'), 'infinite'),
))
def test_statistics_are_possible(tmp_path, kind, value, words):
    state = dense_state()
    name = [name for name in state if name.endswith(kind)][-1]
    path = save(tmp_path / 'odd.pth', {**state, name: state[name].float().index_fill(-1, torch.tensor([0]), value)})
    with pytest.raises(CheckpointError, match=f'{name}: {words}'):
        load_backbone(build(), path)
    with pytest.raises(CheckpointError, match=f'{name}: {words}'):
        load_model(build(), read_checkpoint(path), path)


@pytest.mark.parametrize('name', ('blocks.0.mlp.fc1.weight', 'head.weight'))
def test_sparse_tensors_of_layouts_that_transpose(name, tmp_path):
    state, _ = from_official(official_state(), {}, LAYOUTS['dense'])
    state |= {n: v for n, v in official_state().items() if n.startswith('head')}
    path = save(tmp_path / 'odd.pth', {n.replace('running_mean', '_mean'): v.to_sparse() if n.endswith(name) else v
                                       for n, v in state.items()})
    with pytest.raises(CheckpointError, match=f'{name}: sparse'):
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
    with pytest.raises(CheckpointError) as caught:
        load_backbone(build(), save(tmp_path / 'two.pth', state))
    assert all(word in str(caught.value) for word in (*doubled, 'two.pth'))


def test_what_a_user_allows_torch_to_read_stays_allowed(tmp_path):
    """By class, and by the names of this package's own stand-ins."""
    allowed = [argparse.Namespace, (dict, 'mmengine.logging.history_buffer.HistoryBuffer'), Fraction]
    path = save(tmp_path / 'own.pth', {**dense_state(), 'note': argparse.Namespace(lr=1)})
    with torch.serialization.safe_globals(allowed):
        before = torch.serialization.get_safe_globals()
        read_checkpoint(path)
        assert set(torch.serialization.get_safe_globals()) == set(before)
        with pytest.raises(CheckpointError):
            read_checkpoint(save(tmp_path / 'code.pth', {'x': save}))
        assert set(torch.serialization.get_safe_globals()) == set(before)
