"""The vote of nearest neighbours, by itself."""
import numpy as np
import pytest
import torch

pytest.importorskip('mmpretrain')

from xcit_dense.selfsup import knn
from xcit_dense.selfsup.knn import KNNHead, knn_scores


def unit(*angles):
    """Features of length 1 in the plane, at angles in degrees."""
    angles = torch.tensor(angles, dtype=torch.float64).deg2rad()
    return torch.stack((angles.cos(), angles.sin()), 1)


def test_votes_by_hand():
    """At 0, 60 and 90 degrees the similarities are 1, 1/2 and 0."""
    features, labels = unit(60, 0, 180, 90), torch.tensor([2, 1, 0, 2])
    weights = np.exp(np.array([1, 0.5, 0]) / 0.2)
    scores = knn_scores(unit(0), features, labels, 4, k=3, temperature=0.2)
    assert scores.dtype == torch.float64
    np.testing.assert_allclose(scores[0], np.array([0, weights[0], weights[1] + weights[2], 0]) / weights.sum(),
                               atol=1e-15)
    assert knn_scores(unit(0), features, labels, 4, k=1).tolist() == [[0, 1, 0, 0]]


def test_one_near_neighbour_outvotes_two_far_ones_only_at_a_low_temperature():
    features, labels = unit(10, 50, 50), torch.tensor([0, 1, 1])
    assert knn_scores(unit(0), features, labels, 2, k=3, temperature=0.07).argmax() == 0
    assert knn_scores(unit(0), features, labels, 2, k=3, temperature=10.).argmax() == 1


def test_classes_with_the_same_votes_have_the_same_score():
    scores = knn_scores(unit(0, 20), unit(20, -20), torch.tensor([2, 0]), 3, k=2)
    assert scores[0, 0] == scores[0, 2] == 0.5 and scores[1].argmax() == 2


@pytest.mark.parametrize('k', (3, 50, 900))
@pytest.mark.parametrize('cells', (1, 100, 2**24))
def test_chunks_change_nothing(k, cells, monkeypatch):
    """Chunks smaller than k too; 900 is more than there are, so all vote."""
    monkeypatch.setattr(knn, '_CELLS', cells)
    queries, features = (torch.nn.functional.normalize(torch.randn(n, 8).double()) for n in (7, 300))
    labels = torch.randint(0, 5, (300, ))
    found = knn_scores(queries, features, labels, 5, k)
    similar = (queries @ features.T).numpy()
    for row, scores in zip(similar, found, strict=True):
        places = np.argsort(-row)[:k]
        votes = np.bincount(labels.numpy()[places], np.exp(row[places] / 0.07), minlength=5)
        np.testing.assert_allclose(scores, votes / votes.sum(), atol=1e-12)


def test_the_head_compares_directions_not_lengths():
    head = KNNHead(num_classes=3)
    head.fit(unit(0, 90).float() * torch.tensor([[100.], [0.01]]), torch.tensor([1, 2]), k=20)
    assert head.k == 2 and not head.state_dict()
    assert head(torch.tensor([[0.1, 3.], [5., 0.2]])).argmax(1).tolist() == [2, 1]
