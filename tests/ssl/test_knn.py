"""The vote of nearest neighbours, by itself."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip('mmpretrain')

from xcit_dense.ssl import probes
from xcit_dense.ssl.probes import KNNHead, knn_scores


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
