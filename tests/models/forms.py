"""The forms of a branch: forced, cut into chunks, compared."""
import copy

import pytest
import torch
import torch.distributed as dist
from mmengine.dist import get_rank
from torch import nn

from helpers.models import gradient_pairs, randomise, relative_error
from xcit_dense.models import reference
from xcit_dense.models.fast import ffn, layers, lpi, norms, ops, residual, xca
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
        monkeypatch.setattr(residual, 'chunks', lambda x, keep, chunk: [None])
        monkeypatch.setattr(residual, '_output', lambda x, keep, parts: torch.full_like(x, torch.nan))


def choose_form(monkeypatch, gram):
    monkeypatch.setattr(xca, 'is_cheaper', lambda x: gram)


def released_block(block, x, height, width, keep=None):
    """A block in the release's lines; ``keep`` are the factors of stochastic depth for the samples."""
    for gamma, branch in ((block.gamma1, reference._attend), (block.gamma3, reference._mix_locally),
                          (block.gamma2, reference._feed)):
        y = gamma * branch(block, x, height, width)
        x = x + (y if keep is None else y * keep.view(-1, 1, 1))
    return x


class Branch(nn.Module):
    """A branch with norm and LayerScale."""

    def __init__(self, kind, channels=4, heads=2, norm=nn.BatchNorm2d, affine=True):
        super().__init__()
        make = {XCA: lambda: XCA(channels, heads), FFN: lambda: FFN(channels, 6), LPI: lambda: LPI(channels, norm)}
        self.branch, self.heads = make[kind](), heads
        self.norm = nn.LayerNorm(channels, eps=1e-6, elementwise_affine=affine)
        self.gamma = nn.Parameter(torch.ones(channels))
        randomise(self)

    def forward(self, x, keep, grid):
        """The fast form."""
        kind = type(self.branch)
        args = {XCA: (self.heads, ), LPI: (getattr(self.branch, 'bn', None), *(grid or ())), FFN: ()}[kind]
        norm = self.norm.weight, self.norm.bias, self.norm.eps
        gamma, keep = ops.factors(x, self.gamma, keep)
        parameters = *FORMS[kind].parameters_of(self.branch), gamma
        return residual.residual(FORMS[kind].Form(*args), x, norm, keep, parameters)

    def in_parts(self, x, keep, grid):
        """The same in ordinary operations."""
        y = self.gamma * self.branch(self.norm(x), *(grid if isinstance(self.branch, LPI) else ()))
        return x + (y if keep is None else keep.view(-1, 1, 1) * y)


def assert_gradients(model, tensors, tolerance, by_layer=False):
    for name, (got, wanted) in gradient_pairs(model, tensors, by_layer).items():
        if wanted.norm() < 1e-12:  # exactly 0 but for rounding: the bias between two layers under a batch norm
            assert name == 'fpn1.0.bias' and got.norm() < 1e-12
        else:
            assert relative_error(got, wanted) < tolerance, name


def papers_code(height, width, frequencies=16):
    """The position code (4 frequencies, height, width) in float64, by its definition."""
    wave = 10000**(torch.arange(0, 2 * frequencies, 2).double() / (2 * frequencies))
    codes = []
    for length in (height, width):
        angle = 2 * torch.pi * torch.arange(1, length + 1).double()[:, None] / (length + 1e-6) / wave
        codes.append(torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1).t())
    return torch.cat((codes[0][:, :, None].expand(-1, -1, width), codes[1][:, None].expand(-1, height, -1)))


def errors_of(names, ours, theirs, exact):
    """Return the root mean squares, over draws, of the relative errors of tensors in two forms, by name."""
    found = [[[relative_error(value, right) for value, right in zip(values, rights, strict=True)]
              for values, rights in zip(form, exact, strict=True)] for form in (ours, theirs)]
    return dict(zip(names, torch.tensor(found).square().mean(1).sqrt().t().tolist(), strict=True))


def assert_same(got, wanted, tolerance=1e-10):
    """Compare all tensors of two dicts. Norms count as 1 or more: biases before a batch norm have gradients of 0."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert (got[name] is None) == (value is None), name
        if value is not None:
            assert (got[name].double() - value.double()).norm() <= tolerance * value.double().norm().clamp_min(1), name


def lpi_step(branch, x, grid):
    """Return output, gradients and running statistics of a step whose loss weights every value by its input."""
    x = x.clone().requires_grad_()
    out = branch(x, None, grid)
    (out * x.detach().flip(2)).sum().backward()
    return dict(out=out.detach(), x=x.grad), {n: p.grad for n, p in branch.named_parameters()}, dict(
        branch.named_buffers())


def lpi_steps(folder):
    """Run in each of two processes: compute its part of every batch, and compare what has limits of its own."""
    branch, batches = torch.load(folder / 'branch.pt', weights_only=False)
    _compare_groups(torch.randn(2, 8, 3, 5) + get_rank())
    return [lpi_step(copy.deepcopy(branch), parts[get_rank()], grid) for parts, grid in batches]


def _compare_groups(x):
    """A norm's own group is not that of all; a process without images runs torch's norm, which sends zeros."""
    groups = [dist.new_group([rank]) for rank in (0, 1)]
    own, grad = groups[get_rank()], torch.randn_like(x)
    alone = norms.batch_statistics(x, 1e-5)
    results = [(*norms.batch_statistics(x, 1e-5, group), *norms.normalise_backward(
        grad, x, *alone[:2], torch.ones(8), alone[2], group)) for group in (None, own)]
    if get_rank() == 0:
        results.append((*norms.batch_statistics(x, 1e-5, dist.group.WORLD), *results[0][3:]))
    else:
        dist.all_gather([torch.empty(17) for _ in groups], torch.zeros(17))
    for result in results[1:]:
        for value, wanted in zip(result, results[0], strict=True):
            torch.testing.assert_close(torch.as_tensor(value).double(), torch.as_tensor(wanted).double())
    for norm in (nn.SyncBatchNorm(8, process_group=own), nn.SyncBatchNorm(8).eval()):
        assert norms.sync_group(norm) is None
    with pytest.raises(ValueError, match='GPU'):  # torch's own, outside LPI: no statistics that are not shared
        layers.run(nn.SyncBatchNorm(8), x)
