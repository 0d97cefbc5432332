"""The stage right in its tiny form: each check passes, and fails where its subject is broken."""
import pytest
import torch

from helpers.models import randomise
from xcit_dense import XCiT
from xcit_dense.gpu_report import right_values
from xcit_dense.gpu_report.checks import Setting, within
from xcit_dense.gpu_report.right import CHECKS
from xcit_dense.gpu_report.steps import build, copy_of, errors_of, recipe_sizes, step
from xcit_dense.models import fusing
from xcit_dense.models.drop_path import DropPath
from xcit_dense.models.fast import branches, ops, products, xca

RUN = {check.name: check.run for check in CHECKS}
SLOW = [pytest.param(name, marks=pytest.mark.slow) if name == 'compiled' else name for name in RUN]


@pytest.fixture
def setting(tmp_path, monkeypatch):
    """A tiny one, in which memory is compared after fewer steps."""
    choose = Setting.choose
    monkeypatch.setattr(Setting, 'choose', lambda self, full, tiny: (
        (4, 24) if full == (20, 200) else choose(self, full, tiny)))
    return Setting('cpu', True, tmp_path)


@pytest.mark.parametrize('name', SLOW)
def test_each_check_passes_on_a_sound_model(name, setting):
    before = torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled()
    outcome = RUN[name](setting)
    assert outcome.passed is True, outcome.text
    assert outcome.rows and all(row.keys() and all(isinstance(value, str | int | float) for value in row.values())
                                for row in outcome.rows)
    assert before == (torch.backends.cudnn.allow_tf32, torch.are_deterministic_algorithms_enabled())


def replaced(owner, name, change):
    """A fault: what a function returns goes through ``change``, which gets its arguments too."""
    right = getattr(owner, name)
    return owner, name, lambda *args, **kwargs: change(right(*args, **kwargs), *args, **kwargs)


def drawn(_, *args):
    args[-1].add_(torch.randn(args[-1].shape, generator=OWN).to(args[-1].dtype) * 1e-3)


def without_bias(conv, *_, **__):
    torch.nn.init.zeros_(conv.bias)
    return conv


def put(maps, *_):
    for y in maps:
        y.detach().put_(torch.tensor([0]), y.detach().flatten()[:1])
    return maps


def coarse(y, x, *_):
    return y if x.dtype in (torch.float32, torch.float64) else y.to(torch.float8_e4m3fn).to(y.dtype)


OWN, KEPT = torch.Generator().manual_seed(3), []
#: Functions that return what `monkeypatch.setattr` takes.
BROKEN = dict(
    forward_off=lambda: replaced(ops, 'add_branch', lambda _, *args: args[-1].mul_(1.0001)),
    gradient_off=lambda: replaced(products, 'linear_backward', lambda y, *_: y * 1.001),
    products_lose_bits=lambda: replaced(products, 'linear', coarse),
    bias_of_a_norm_not_folded=lambda: replaced(fusing, 'fuse_conv_bn_eval', without_bias),
    reads_a_value=lambda: replaced(
        DropPath, 'draw', lambda keep, *_: keep if keep is None or bool(keep.sum() >= 0) else None),
    reads_in_backward=lambda: replaced(
        ops, 'gradient_of_branch', lambda pair, *_: pair if pair[0].sum().item() < 1e30 else None),
    draws_of_its_own=lambda: replaced(ops, 'add_branch', drawn),
    # an operation without a deterministic form that gives the same bits here all the same
    not_deterministic=lambda: replaced(XCiT, 'pyramid', put),
    keeps_maps=lambda: replaced(XCiT, 'pyramid', lambda maps, *_: KEPT.append(maps) or maps),
    form_for_compilers_off=lambda: replaced(xca, 'gram_form', lambda y, *_: y * 1.001),
    loop_over_tokens=lambda: (xca, 'is_cheaper', lambda x: sum(range(x.shape[1])) > 0))


@pytest.mark.parametrize('name, fault, words', (
    ('golden', 'forward_off', 'fast: evaluation'), ('golden', 'gradient_off', 'fast: gradients'),
    ('float64', 'forward_off', 'maps'), ('float64', 'gradient_off', 'gradient of attention'),
    ('half_types', 'products_lose_bits', 'times'),
    ('fast_path', 'forward_off', 'float64 training: maps'), ('fast_path', 'gradient_off', 'gradient'),
    ('fused', 'bias_of_a_norm_not_folded', 'maps'),
    ('sync', 'reads_a_value', 'Tensor.item'), ('sync', 'reads_in_backward', 'training'),
    ('deterministic', 'draws_of_its_own', 'map 1'), ('deterministic', 'not_deterministic', 'put_ refused'),
    ('memory', 'keeps_maps', 'MiB'),
    pytest.param('compiled', 'form_for_compilers_off', 'maps', marks=pytest.mark.slow),
    pytest.param('compiled', 'loop_over_tokens', 'graphs', marks=pytest.mark.slow)))
def test_each_check_fails_on_a_broken_model(name, fault, words, setting, monkeypatch):
    monkeypatch.setattr(*BROKEN[fault]())
    outcome = RUN[name](setting)
    KEPT.clear()
    assert outcome.passed is False and words in outcome.text, outcome.text


def test_a_fast_path_that_does_not_run_proves_nothing(setting, monkeypatch):
    monkeypatch.setattr(branches, 'can_run', lambda x: False)
    monkeypatch.setattr(branches, 'can_run_or_be_traced', lambda x: False)
    outcome = RUN['fast_path'](setting)
    assert outcome.passed is False and 'did not run' in outcome.text


def test_without_golden_files_the_check_is_not_possible(setting, tmp_path, monkeypatch):
    monkeypatch.setattr(right_values, 'GOLDEN', tmp_path)
    outcome = RUN['golden'](setting)
    assert outcome.passed is None and 'not possible here' in outcome.text and str(tmp_path) in outcome.text


@pytest.mark.parametrize('value', (float('nan'), float('inf')))
def test_no_number_passes_as_small(value, setting):
    assert within(dict(a=value, b=0.), 1.).passed is False
    assert right_values.beside(dict(a=(value, 1.), b=(1., 1.))).passed is False
    assert right_values.beside(dict(a=(1.5, 1.))).passed and not right_values.beside(dict(a=(1.51, 1.))).passed
    found = {'map 1': torch.ones(3), 'map 2': torch.tensor([value, 1, 1]), 'map 3': torch.ones(3)}
    assert not errors_of(found, {name: torch.ones(3) for name in found})['maps'] <= 1


def test_a_step_has_every_gradient_and_is_the_same_again(setting):
    model = randomise(build(setting, 8, drop_path_rate=0.5))
    images = torch.randn(2, 3, 61, 59)
    found = step(model, images)
    for name, value in step(copy_of(model, XCiT, drop_path_rate=0.5), images).items():
        assert torch.equal(value, found[name]), name
    grads = sum(len(value) for name, value in found.items() if name.startswith('gradient'))
    assert grads == sum(p.numel() for p in model.parameters())
    assert list(step(model.eval(), images)) == [name for name in found if name.startswith('map')]


def test_sizes_are_those_of_the_recipe(tmp_path):
    sizes = recipe_sizes(Setting('cuda', False, tmp_path), 20)
    assert len(sizes) == 20 and len(set(sizes)) > 10
    assert all(side % 32 == 0 for size in sizes for side in size)
    assert all(448 < min(size) <= 800 and max(size) <= 1344 for size in sizes)
    assert {size[0] < size[1] for size in sizes} == {True, False}
