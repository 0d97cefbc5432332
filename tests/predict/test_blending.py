"""Labels of a picture out of the scores of its tiles."""
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from xcit_dense.predict.blending import blend
from xcit_dense.predict.tiling import Tiling

SIZE = 50, 70


def sample(logits, keeps_scores=True):
    found = SegDataSample(pred_sem_seg=PixelData(data=logits.argmax(0, keepdim=True)))
    if keeps_scores:
        found.seg_logits = PixelData(data=logits)
    return found


def blended(scores_of, tiling, size=SIZE, **options):
    """Labels and scores of a picture; each pixel is given once."""
    tiles = tiling.tiles(*size)
    labels, scores, count = np.full(size, -1), None, np.zeros(size, int)
    for patch in blend(map(scores_of, tiles), tiles, **options):
        labels[patch.y, patch.x] = patch.labels
        count[patch.y, patch.x] += 1
        if patch.scores is not None:
            scores = torch.zeros(len(patch.scores), *size) if scores is None else scores
            scores[:, patch.y, patch.x] = patch.scores
    assert (count == 1).all()
    return labels, scores


def part(array, tile):
    return array[..., slice(*tile.y), slice(*tile.x)].clone()


@pytest.mark.parametrize('keeps_scores', (True, False))
@pytest.mark.parametrize('tile, overlap', ((20, 0.2), (20, 0), (20, 0.6), (16, 0.95), (64, 0.2), (49, 0.1)))
def test_a_model_that_looks_at_single_pixels_has_the_labels_of_the_whole(tile, overlap, keeps_scores):
    whole = torch.randn(150, *SIZE)
    labels, scores = blended(lambda one: sample(part(whole, one), keeps_scores), Tiling(tile, overlap), scores=True)
    assert np.array_equal(labels, whole.argmax(0).numpy())
    assert not keeps_scores or torch.allclose(scores, whole, atol=1e-5)


@pytest.mark.parametrize('overlap', (0.2, 0.5, 0.8))
def test_blended_scores_have_no_seams(overlap):
    """Tiles that say different things everywhere: from one to the next the mean goes in small steps."""
    tiling, values = Tiling(20, overlap), np.random.default_rng(0).random(10**4)
    _, scores = blended(lambda tile: sample(torch.full((2, 20, 20), values[tile.row * 100 + tile.column])), tiling,
                        scores=True)
    for axis, length in ((1, 50), (2, 70)):
        first, second, *_ = tiling.spans(length)
        shared = min(first.end - second.start, 10)
        assert np.abs(np.diff(scores.numpy(), axis=axis)).max() < 2 / shared


def test_a_tile_counts_less_towards_its_border():
    """What a model says there, where it sees least, is outvoted."""
    tiling = Tiling(20, 0.5)

    def wrong_at_the_border(tile):
        logits = torch.zeros(2, 20, 20)
        logits[0, 3:-3, 3:-3] = 1
        logits[1] = 1 - logits[0]
        return sample(logits)

    labels, _ = blended(wrong_at_the_border, tiling)
    assert (labels[3:-3, 3:-3] == 0).all()


def test_without_scores_a_pixel_has_the_label_of_the_nearer_tile():
    tiles = Tiling(20, 0.5).tiles(*SIZE)
    labels, scores = blended(lambda tile: sample(torch.eye(len(tiles))[tiles.index(tile)][:, None, None].repeat(
        1, 20, 20), False), Tiling(20, 0.5), scores=True)
    assert scores is None
    for y, x in np.ndindex(*SIZE):
        near = min(tiles, key=lambda tile: (abs((tile.y.start + tile.y.end) / 2 - y - 0.5)
                                            + abs((tile.x.start + tile.x.end) / 2 - x - 0.5)))
        assert tiles[labels[y, x]] == near


@pytest.mark.parametrize('threshold', (0.3, 0.6))
def test_a_single_output_is_a_probability(threshold):
    whole = torch.rand(1, *SIZE)
    labels, _ = blended(lambda tile: sample(part(whole, tile)), Tiling(20, 0.3), threshold=threshold)
    near = (whole[0] - threshold).abs() < 1e-6
    assert np.array_equal(labels[~near], (whole[0] > threshold).long().numpy()[~near])
