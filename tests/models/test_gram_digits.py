"""The digits that the Gram form loses: the table of docs/design.md."""
import re
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from helpers.models import relative_error
from helpers.paths import ROOT
from xcit_dense.models.fast import mix, xca
from xcit_dense.models.xca import XCA


def documented():
    rows = re.search(r'\| \$r\$ \|(.*)\|\n\|[-|]+\|\n\| error \|(.*)\|', (ROOT / 'docs/design.md').read_text())
    return list(zip(*([float(cell) for cell in row.split('|')] for row in rows.groups()), strict=True))


def ignoring(times):
    """Return an attention that ignores a direction, and tokens that vary ``times`` as much in it as in the others."""
    torch.manual_seed(0)
    attention, direction = XCA(384, 8).eval(), nn.functional.normalize(torch.randn(384).double(), dim=0)
    x = torch.randn(1, 2048, 384).double()
    x = (x + (times - 1) * (x @ direction).unsqueeze(-1) * direction).float()
    with torch.no_grad():
        weight = attention.qkv.weight.normal_(std=384**-0.5)[:768].double()
        attention.qkv.weight[:768] = (weight - (weight @ direction).outer(direction)).float()
    return attention, x


@pytest.mark.parametrize('times, wanted', documented())
def test_error_where_all_queries_and_keys_ignore_a_direction(times, wanted):
    attention, x = ignoring(times)
    with torch.no_grad():
        token, gram = attention(x), xca.gram_form(attention, x)
        exact = attention.double()(x.double())
    print(f'r = {times:g}: Gram form {relative_error(gram, exact):.1e}, token form {relative_error(token, exact):.1e}')
    assert wanted / 3 < relative_error(gram, exact) < wanted * 3
    assert relative_error(token, exact) < 2e-6


@pytest.mark.parametrize('dtype', (torch.bfloat16, torch.float16))
@pytest.mark.parametrize('times', (50, 500))
def test_half_types_lose_no_more_of_them_than_the_token_form(dtype, times):
    """The sums over tokens stay in float32: rounded to bfloat16, the error at 50 is 2.4 times the token form's."""
    attention, x = ignoring(times)
    with torch.no_grad():
        with torch.autocast('cpu', dtype):
            token, gram = attention(x), xca.gram_form(attention, x)
        exact = attention.double()(x.double())
    assert relative_error(gram, exact) < relative_error(token, exact)


def test_on_a_gpu_lost_digits_are_a_warning_at_the_next_check(monkeypatch):
    """Where reading the result at once would block the device."""
    attention, x = ignoring(2)
    weights = xca.prepare(attention.num_heads, *xca.parameters_of(attention))
    on_a_gpu = SimpleNamespace(device=torch.device('cuda'), to=lambda *args, **kwargs: torch.tensor(True))
    monkeypatch.setattr(mix, 'cancels', lambda *args: on_a_gpu)
    mix.mix(x.mean(1), x.mT @ x, x.shape[1], weights, x.dtype, guard=True)
    with pytest.warns(UserWarning, match='lost digits.*set_fast'):
        mix.warn_later(torch.tensor(False))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        for lost in (False, False, True):
            mix.warn_later(torch.tensor(lost))
    with pytest.warns(UserWarning, match='lost digits.*set_fast'):
        mix.warn_later(torch.tensor(False))
