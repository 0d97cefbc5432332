"""The backbone in its exported form: the same numbers, and modified layers stay."""
import copy

import pytest
import torch
from torch import nn

from helpers.models import build, randomise, relative_error
from xcit_dense.models import exported_form as exported
from xcit_dense.models.exported_form import to_exported_form

SIZES = ((64, 64), (65, 97), (33, 130), (128, 160), (200, 111))
EXACT = 1e-5


def assert_levels(got, wanted):
    assert len(got) == len(wanted) > 0
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and relative_error(torch.as_tensor(a), b) < EXACT


def program_of(model):
    """What an exporter gets, of any batch and size."""
    free = torch.export.Dim.DYNAMIC
    return torch.export.export(model, (torch.randn(2, 3, 96, 128), ), dynamic_shapes=({0: free, 2: free, 3: free}, ))


@pytest.mark.parametrize('fused', (False, True))
@pytest.mark.parametrize('patch_size', (8, 16))
def test_levels_are_those_of_the_model(patch_size, fused):
    model = randomise(build(patch_size)).eval()
    given = copy.deepcopy(model).fuse() if fused else model
    before = copy.deepcopy(given.state_dict())
    form = to_exported_form(given)
    program = form if fused else program_of(form).module(check_guards=False)  # from here on both are one
    with torch.no_grad():
        for i, size in enumerate(SIZES):
            x = torch.randn(3 if i % 2 else 1, 3, *size)
            assert_levels(program(x), model(x))
            assert_levels(form(x), model(x))
    assert {n: v.tolist() for n, v in before.items()} == {n: v.tolist() for n, v in given.state_dict().items()}
    assert all(type(block) is not exported._Block for block in given.blocks)


@pytest.mark.parametrize('options', (dict(out_strides=None), dict(out_indices=(1, 3), out_strides=(4, 32)),
                                     dict(norm_cfg=dict(type='GN', num_groups=4)), dict(norm_cfg=dict(type='SyncBN')),
                                     dict(frozen_stages=2, drop_path_rate=0.5)))
def test_other_pyramids_and_norms(options):
    model = randomise(build(16, **options)).eval()
    x = torch.randn(2, 3, 65, 97)
    with torch.no_grad():
        assert_levels(to_exported_form(model)(x), model(x))


def test_a_model_in_training_is_exported_in_evaluation():
    model = randomise(build(drop_path_rate=0.5)).train()
    form = to_exported_form(model)
    assert model.training and not form.training
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert_levels(form(x), copy.deepcopy(model).eval()(x))


class Doubled(nn.Module):
    """A user's layer around another."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x, *args):
        return 2 * self.layer(x, *args)


def wrap_lpi(model):
    model.blocks[1].local_mp = Doubled(model.blocks[1].local_mp)


def wrap_doubling(model):
    model.fpn1[0] = Doubled(model.fpn1[0])


def wrap_level(model):
    model.fpn2 = Doubled(model.fpn2)


def hook_lpi(model):
    model.blocks[0].local_mp.register_forward_hook(lambda module, args, y: 3 * y)


def hook_doubling(model):
    model.fpn1[3].register_forward_hook(lambda module, args, y: 3 * y)


def hook_drop_path(model):
    model.blocks[2].drop_path.register_forward_hook(lambda module, args, y: 3 * y)


@pytest.mark.parametrize('touch', (wrap_lpi, wrap_doubling, wrap_level, hook_lpi, hook_doubling, hook_drop_path))
def test_what_somebody_changed_stays(touch):
    plain = randomise(build(16)).eval()
    model = copy.deepcopy(plain)
    touch(model)
    x = torch.randn(1, 3, 70, 90)
    with torch.no_grad():
        wanted = model(x)
        assert max(relative_error(a, b) for a, b in zip(wanted, plain(x), strict=True)) > 1e-3
        assert_levels(to_exported_form(model)(x), wanted)


@pytest.mark.parametrize('patch_size', (8, 16))
def test_the_graph_has_what_runtimes_are_fast_at(patch_size):
    program = program_of(to_exported_form(randomise(build(patch_size))))
    calls = [str(node.target) for node in program.graph.nodes]
    assert sum('batch_norm' in call for call in calls) == 4  # of LPI: what follows it pads with zeros
    assert not any('conv_transpose' in call for call in calls)
    assert sum('layer_norm' in call for call in calls) == 12


@pytest.mark.slow
@pytest.mark.parametrize('patch_size', (8, 16))
def test_onnxruntime_gives_the_levels(patch_size, tmp_path):
    onnxruntime = pytest.importorskip('onnxruntime')
    model = randomise(build(patch_size)).eval()
    free = torch.export.Dim.DYNAMIC
    file = str(tmp_path / 'model.onnx')
    torch.onnx.export(to_exported_form(model), (torch.randn(2, 3, 96, 128), ), file, dynamo=True, external_data=False,
                      dynamic_shapes=({0: free, 2: free, 3: free}, ), input_names=['images'], verbose=False)
    session = onnxruntime.InferenceSession(file, providers=['CPUExecutionProvider'])
    for i, size in enumerate(SIZES):
        x = torch.randn(3 if i % 2 else 1, 3, *size)
        with torch.no_grad():
            assert_levels(session.run(None, {'images': x.numpy()}), model(x))
