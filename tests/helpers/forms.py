"""The forms of a branch: forced, cut into chunks, compared."""
import copy

import torch
from mmengine.dist import get_rank
from torch import nn

from helpers.models import randomise
from xcit_dense.models.fast import ffn, lpi, ops, xca
from xcit_dense.models.ffn import FFN
from xcit_dense.models.lpi import LPI
from xcit_dense.models.xca import XCA

FORMS = {XCA: xca, LPI: lpi, FFN: ffn}

#: Small chunks, or a whole batch at once as on a GPU.
CUTTINGS = ('chunks', 'whole')


def cut_as(cutting, monkeypatch, floats=500):
    """Use small chunks, so that tiny inputs have several; or one for the batch, as on a GPU, without copies."""
    if cutting == 'chunks':
        monkeypatch.setattr(ops, 'CHUNK_FLOATS', floats)
    else:
        monkeypatch.setattr(ops, 'chunks', lambda x, keep=None, whole_samples=False: [(slice(None), slice(None))])
        monkeypatch.setattr(ops, 'empty_output', lambda x, keep=None: torch.full_like(x, torch.nan))
        monkeypatch.setattr(lpi, '_bands', lambda x, height, width: [(slice(None), 0, height)])


def choose_form(monkeypatch, gram):
    monkeypatch.setattr(xca, 'is_cheaper', lambda x: gram)


class Branch(nn.Module):
    """A branch with norm and LayerScale."""

    def __init__(self, kind, channels=4, heads=2, norm=nn.BatchNorm2d, gamma=True, affine=True):
        super().__init__()
        make = {XCA: lambda: XCA(channels, heads), FFN: lambda: FFN(channels, 6), LPI: lambda: LPI(channels, norm)}
        self.branch, self.heads = make[kind](), heads
        self.norm = nn.LayerNorm(channels, eps=1e-6, elementwise_affine=affine)
        self.gamma = nn.Parameter(torch.ones(channels)) if gamma else None
        randomise(self)

    def forward(self, x, keep, grid):
        """The fast form."""
        kind = type(self.branch)
        args = {XCA: (None, self.heads), LPI: (getattr(self.branch, 'bn', None), *(grid or ())), FFN: ()}[kind]
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        return FORMS[kind].residual(x, norm, self.gamma, keep, FORMS[kind].parameters_of(self.branch), *args)

    def in_parts(self, x, keep, grid):
        """The same in ordinary operations."""
        args = grid if isinstance(self.branch, LPI) else ()
        y = self.branch(self.norm(x), *args)
        y = y if self.gamma is None else self.gamma * y
        return x + (y if keep is None else keep.view(-1, 1, 1) * y)


def assert_same(got, wanted, tolerance=1e-10):
    """Compare all tensors of two dicts. Norms count as 1 or more: biases before a batch norm have gradients of 0."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (got[name] is None) == (value is None), name
        if value is not None:
            bound = tolerance * value.double().norm().clamp_min(1)
            assert (got[name].double() - value.double()).norm() <= bound, name


def lpi_step(branch, x, grid):
    """Return output, gradients and running statistics of a step whose loss weights every value by its input."""
    x = x.clone().requires_grad_()
    out = branch(x, None, grid)
    (out * x.detach().flip(2)).sum().backward()
    return dict(out=out.detach(), x=x.grad), {n: p.grad for n, p in branch.named_parameters()}, dict(
        branch.named_buffers())


def lpi_steps(folder):
    """Run in each of two processes: compute its part of every batch."""
    branch, batches = torch.load(folder / 'branch.pt', weights_only=False)
    return [lpi_step(copy.deepcopy(branch), parts[get_rank()], grid) for parts, grid in batches]
