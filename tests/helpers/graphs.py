"""CUDA graphs without a GPU: what a graph would replay runs again, on the memory that it would have."""
import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from helpers.models import assert_equal
from xcit_dense.models import graph_conditions, graphs


class Again:
    """In the place of a CUDA graph."""
    spoil, replays = staticmethod(lambda out: out), 0

    def __init__(self, function):
        self._function, self.out, self._memory = function, (), None

    def replay(self):
        """What it returns is always in the same memory."""
        Again.replays += 1
        with torch.enable_grad():
            self.out = self.spoil(self._function())
        outs = self.out if isinstance(self.out, list) else [self.out]
        self._memory = self._memory or [out.detach().clone() for out in outs]
        for out, place in zip(outs, self._memory, strict=True):
            out.data = place.copy_(out.detach())


class Recorder:
    generator, record, warm = torch.default_generator, Again, staticmethod(lambda function: function())

    def __init__(self, device):
        """There is one for all graphs that live at a time."""

    def reserve(self, needed):
        """There is memory for all."""


def replay_on_cpus(monkeypatch):
    monkeypatch.setattr(graphs, 'Recorder', Recorder)
    monkeypatch.setattr(graph_conditions, '_REPLAYED_ON', ['cpu'])
    monkeypatch.setattr(Again, 'replays', 0)


def train_in_parallel(model, images):
    """Train two equal models in each process of a group, one of them with graphs, and compare them.

    Returns what is said of the graphs, how many replays there were, the weights, and what is said of a SyncBatchNorm.
    """
    model, said, runs = copy.deepcopy(model), [], []
    with pytest.MonkeyPatch.context() as patch:
        replay_on_cpus(patch)
        for has_graphs in (True, False):
            torch.manual_seed(dist.get_rank())
            run = nn.parallel.DistributedDataParallel(copy.deepcopy(model))
            run.module.graphs = graphs.Graphs(run.module, said.append) if has_graphs else None
            optimizer = torch.optim.SGD(run.parameters(), lr=1e-3)
            for step in range(2 * graphs.AFTER):
                sum(out.square().mean() for out in run(images[dist.get_rank()] + step)).backward()
                optimizer.step()
                optimizer.zero_grad()
            runs.append(run.module.state_dict())
        assert_equal(*runs)
        why = graph_conditions.obstacle_of(nn.SyncBatchNorm.convert_sync_batchnorm(model))
        return said, Again.replays, [p.detach() for p in run.parameters()], why
