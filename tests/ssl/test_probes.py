"""The vote of nearest neighbours, and linear layers on features that do not change, by themselves."""
import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from xcit_dense.ssl import linear, probes
from xcit_dense.ssl.dino import cosine
from xcit_dense.ssl.linear import RATES as ALL_RATES
from xcit_dense.ssl.linear import LinearLayers, LinearProbeHook, hold_out
from xcit_dense.ssl.probes import knn_scores

RATES = 1e-4, 1e-2, 1.


@pytest.mark.parametrize('k, temperature', ((1, 0.07), (3, 0.2), (50, 0.07), (900, 10.)))
@pytest.mark.parametrize('cells', (1, 100, 2**24))
def test_the_nearest_vote_in_chunks_of_any_size(k, temperature, cells, monkeypatch):
    """Chunks smaller than k too; 900 is more than there are, so all vote."""
    monkeypatch.setattr(probes, '_CELLS', cells)
    queries, features = (F.normalize(torch.randn(n, 8).double()) for n in (7, 300))
    labels = torch.randint(0, 5, (300, ))
    found = knn_scores(queries, features, labels, 6, k, **{} if temperature == 0.07 else dict(temperature=temperature))
    assert found.dtype == torch.float64
    for row, scores in zip((queries @ features.T).numpy(), found, strict=True):
        places = np.argsort(-row)[:k]
        votes = np.bincount(labels.numpy()[places], np.exp(row[places] / temperature), minlength=6)
        np.testing.assert_allclose(scores, votes / votes.sum(), atol=1e-12)


def test_a_head_votes_by_angles_alone_with_its_temperature():
    head, (features, labels) = probes.KNNHead(3, temperature=0.5), blobs()
    head.fit(features[:40].clone(), labels[:40], 40)
    wanted = knn_scores(F.normalize(features[40:]), F.normalize(features[:40]), labels[:40], 3, 40, 0.5)
    torch.testing.assert_close(head(7 * features[40:]), wanted.log())


def blobs(count=60, seed=0):
    """Features around three points, that a linear layer can separate."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    return 2 * F.one_hot(labels, 8).float() + 0.2 * torch.randn(count, 8, generator=generator), labels


def test_each_layer_is_what_torch_learns_from_it_alone(monkeypatch):
    """By torch's optimizer, with one loss and a rate that follows the cosine after each pass of three batches."""
    monkeypatch.setattr(linear, '_BATCH', 25)
    features, labels = blobs()
    layers = LinearLayers(8, 3, RATES, epochs=7, seed=3).fit(features, labels, 7, seed=4)
    order = torch.Generator().manual_seed(4)
    passes = [torch.randperm(60, generator=order).split(25) for _ in range(7)]
    for layer, rate in zip(layers.layers, RATES, strict=True):
        weight = (0.01 * torch.randn(3, 8, generator=torch.Generator().manual_seed(3))).requires_grad_()
        bias = torch.zeros(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight, bias], rate, momentum=0.9)
        for epoch in range(7):
            optimizer.param_groups[0]['lr'] = cosine(rate, 0., epoch, 7)
            for places in passes[epoch]:
                optimizer.zero_grad()
                F.cross_entropy(F.linear(features[places], weight, bias), labels[places]).backward()
                optimizer.step()
        torch.testing.assert_close(layer.weight, weight, atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(layer.bias, bias, atol=1e-6, rtol=1e-5)


def test_the_best_of_several_is_the_most_accurate_then_that_of_the_lowest_loss():
    layers = LinearLayers(8, 3, RATES, 50).fit(*blobs(), 50)
    best, accuracies = layers.judge(*blobs(300, seed=1))
    assert (best, accuracies[2]) == (2, 100) and len(accuracies) == 3
    assert accuracies == [100 * (layer(blobs(300, seed=1)[0]).argmax(1) == blobs(300)[1]).float().mean().item()
                          for layer in layers.layers]
    same = LinearLayers(8, 3, (0.03, 0.3, 0.1), 50).fit(*blobs(), 50).judge(*blobs())
    assert same == (1, [100] * 3)


def test_images_of_each_class_are_held_out_unless_it_has_only_one(caplog):
    labels = torch.tensor([0] * 12 + [1] + [2] * 2 + [3] * 10)
    assert hold_out(labels).nonzero().flatten().tolist() == [0, 10, 13, 15]
    with caplog.at_level('INFO'):
        features = SimpleNamespace(once=lambda: (torch.eye(3, 8), torch.arange(3)))  # then all of them choose the rate
        _, rate = LinearProbeHook({}, 20)._best(features, 3, 0, logging.getLogger())
    assert 'no class has two training images' in caplog.text and ': 100.00' in caplog.text
    assert rate == pytest.approx(3 / 256 * ALL_RATES[-1])
    features = SimpleNamespace(once=blobs)
    layer, rate = LinearProbeHook({}, 20)._best(features, 3, 0, logging.getLogger())
    wanted = LinearLayers(8, 3, [rate], 20, 0).fit(*blobs(), 20, 0).layers[0]  # from all images, with the chosen rate
    assert torch.equal(layer.weight, wanted.weight)
