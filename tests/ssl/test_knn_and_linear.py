"""The vote of nearest neighbours, and linear layers on features that do not change, by themselves."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip('mmpretrain')

from xcit_dense.ssl import probes
from xcit_dense.ssl.dino import cosine
from xcit_dense.ssl.probes import KNNHead, LinearProbeHead, LinearProbes, knn_scores

RATES = 1e-4, 1e-2, 1.


def unit(*angles):
    """Features of length 1 in the plane, at angles in degrees."""
    angles = torch.tensor(angles, dtype=torch.float64).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), 1)


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


def test_classes_with_the_same_votes_have_the_same_score():
    scores = knn_scores(unit(0, 20), unit(20, -20), torch.tensor([2, 0]), 3, k=2)
    assert scores[0, 0] == scores[0, 2] == 0.5 and scores[1].argmax() == 2


def test_the_head_compares_directions_not_lengths():
    head = KNNHead(num_classes=3)
    head.fit(unit(0, 90).float() * torch.tensor([[100.], [0.01]]), torch.tensor([1, 2]), k=20)
    assert head.k == 2 and not head.state_dict()
    assert head(torch.tensor([[0.1, 3.], [5., 0.2]])).argmax(1).tolist() == [2, 1]


def blobs(count=60, seed=0):
    """Features around three points, that a linear layer can separate."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    return 2 * F.one_hot(labels, 8).float() + 0.2 * torch.randn(count, 8, generator=generator), labels


def learned(rates=RATES, steps=100, **options):
    features, labels = blobs()
    held_out = torch.arange(len(labels)) % 10 == 0
    probes = LinearProbes(8, 3, rates, steps, **options)
    for _ in range(steps):
        probes.step(features, labels, held_out)
    return probes, features[held_out], labels[held_out]


def test_a_separable_problem_is_learned_by_the_rate_that_is_best():
    probes, *held_out = learned()
    layer, rate, accuracies = probes.choose([held_out])
    features, labels = blobs(300, seed=1)
    assert (layer(features).argmax(1) == labels).all() and rate == 1. and accuracies[2] == 100
    assert layer is probes._final[2]  # which learned from all images
    halves = [[part[places] for part in held_out] for places in (slice(2), slice(2, None))]
    assert probes.choose(halves)[1:] == (rate, accuracies)


def test_each_layer_is_what_it_would_be_alone():
    """By torch's own optimizer and the loss of that layer only; what is held out teaches only the final layer."""
    probes, *held_out = learned(steps=20, seed=3)
    features, labels = blobs()
    known = torch.arange(60) % 10 != 0
    for place, rate in enumerate(RATES):
        for layers, inputs, targets in ((probes._final, features, labels),
                                        (probes._choosing, features[known], labels[known])):
            weight = (0.01 * torch.randn(3, 8, generator=torch.Generator().manual_seed(3))).requires_grad_()
            bias = torch.zeros(3, requires_grad=True)
            optimizer = torch.optim.SGD([weight, bias], rate, momentum=0.9)
            for step in range(20):
                optimizer.param_groups[0]['lr'] = cosine(rate, 0., step, 20)
                optimizer.zero_grad()
                F.cross_entropy(F.linear(inputs, weight, bias), targets).backward()
                optimizer.step()
            torch.testing.assert_close(layers[place].weight, weight, atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(layers[place].bias, bias, atol=1e-6, rtol=1e-5)


def test_of_rates_that_are_equally_accurate_the_one_with_the_lowest_loss_is_taken():
    features, labels = blobs()
    _, rate, accuracies = learned(rates=(0.03, 0.3, 0.1))[0].choose([(features, labels)])
    assert accuracies == [100] * 3 and rate == 0.3


def test_the_head_takes_a_layer_and_keeps_it_out_of_checkpoints():
    head, layer = LinearProbeHead(num_classes=3), torch.nn.Linear(8, 3)
    head.fit(layer, 'a test')
    features, _ = blobs()
    torch.testing.assert_close(head(features), layer(features))
    assert not head.state_dict() and not head(features).requires_grad
