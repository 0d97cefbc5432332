"""Statistics of batch norms over two processes."""
import copy

import torch
from torch import nn

from helpers.forms import Branch, assert_same, lpi_step, lpi_steps
from xcit_dense.models.lpi import LPI


def test_statistics_over_processes_are_those_of_the_whole_batch(two_processes, tmp_path):
    """Half a batch in each of two processes, one sample and three, one value in one process, one in each."""
    branch = Branch(LPI, 8, norm=nn.SyncBatchNorm).double().train()
    batches = [([torch.randn(count, grid[0] * grid[1], 8).double() + 3 * rank for rank, count in enumerate(samples)],
                grid) for samples, grid in (((2, 2), (5, 3)), ((1, 3), (5, 3)), ((1, 3), (1, 1)), ((1, 1), (1, 1)))]
    torch.save((branch, batches), tmp_path / 'branch.pt')
    ranks = two_processes.in_group(lpi_steps, tmp_path)
    for (parts, grid), *both in zip(batches, *ranks, strict=True):
        tokens, grads, buffers = lpi_step(copy.deepcopy(branch), torch.cat(parts), grid)
        assert_same({name: torch.cat([of[0][name] for of in both]) for name in tokens}, tokens)
        assert_same({name: sum(of[1][name] for of in both) for name in grads}, grads)
        for of in both:
            assert_same(of[2], buffers)
