"""How an image is cut into tiles, which tiles cannot be, and the labels of its pixels from the scores of the tiles."""
import numpy as np
import pytest
import torch
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from xcit_dense.errors import ConfigError
from xcit_dense.predict.tiles import Span, Tiling, blend, tiling_of

SIZE = 50, 70


@pytest.mark.parametrize('tile, overlap', ((1024, 0.2), (100, 0), (7, 0.5), (10, 0.99), (1, 0), (3, 0.9), (64, 0.75)))
def test_tiles_cover_an_image_evenly_with_the_overlap_asked(tile, overlap):
    for length in (*range(tile + 1, tile + 40), 10 * tile + 3):
        spans = Tiling(tile, overlap).spans(length)
        assert spans[0].start == 0 and spans[-1].end == length and {end - start for start, end in spans} == {tile}
        steps = np.diff([span.start for span in spans])
        assert steps.min() >= 1 and steps.max() - steps.min() <= 1
        assert tile - steps.max() >= min(int(tile * overlap), tile - 1)
        if len(spans) > 2:  # one fewer would not do
            assert (len(spans) - 2) * max(int(tile * (1 - overlap) + 1e-9), 1) < length - tile


def test_a_narrow_image_has_tiles_of_its_width_and_the_default_overlap_is_a_fifth():
    assert Tiling(10, 0).tiles(8, 20) == [(0, 0, (0, 8), (0, 10)), (0, 1, (0, 8), (10, 20))]
    assert Tiling(10).spans(10) == [Span(0, 10)] and Tiling(10).fits(10, 10)
    assert not Tiling(10).fits(10, 11) and not Tiling(10).fits(11, 10)
    assert tiling_of(None, None) is None and tiling_of(64, None) == Tiling(64, 0.2) and tiling_of(64, 0).overlap == 0


@pytest.mark.parametrize('tile, overlap, words', (
    (0, None, '--tile.*0.*1024'), (64.5, None, '--tile.*64.5'), ('64', None, "--tile.*'64'"),
    (64, 1, '--overlap.*1.*0.2'), (64, -0.1, '--overlap.*-0.1'), (64, float('nan'), '--overlap.*nan'),
    (None, 0., '--overlap.*0.*--tile')))
def test_tiles_that_cannot_be(tile, overlap, words):
    with pytest.raises(ConfigError, match=words):
        tiling_of(tile, overlap)


def sample(logits, keeps_scores=True):
    found = SegDataSample(pred_sem_seg=PixelData(data=logits.argmax(0, keepdim=True)))
    if keeps_scores:
        found.seg_logits = PixelData(data=logits)
    return found


def blended(scores_of, tiling, **options):
    """Labels and scores of an image; each pixel is given once."""
    tiles = tiling.tiles(*SIZE)
    labels, scores, count = np.full(SIZE, -1), None, np.zeros(SIZE, int)
    for place, outputs, means in blend(map(scores_of, tiles), tiles, **options):
        labels[place] = outputs
        count[place] += 1
        if means is not None:
            scores = torch.zeros(len(means), *SIZE) if scores is None else scores
            scores[(slice(None), *place)] = means
    assert (count == 1).all()
    return labels, scores


def part(array, tile):
    return array[..., slice(*tile.y), slice(*tile.x)].clone()


@pytest.mark.parametrize('keeps_scores', (True, False))
@pytest.mark.parametrize('tile, overlap', ((20, 0), (20, 0.6), (16, 0.8), (64, 0.2)))
def test_a_model_that_looks_at_single_pixels_has_the_labels_of_the_whole(tile, overlap, keeps_scores):
    whole = torch.randn(20, *SIZE)
    labels, scores = blended(lambda one: sample(part(whole, one), keeps_scores), Tiling(tile, overlap), scores=True)
    assert np.array_equal(labels, whole.argmax(0).numpy())
    assert torch.allclose(scores, whole, atol=1e-5) if keeps_scores else scores is None


@pytest.mark.parametrize('overlap', (0.2, 0.5, 0.8))
def test_blended_scores_have_no_seams(overlap):
    tiling, values = Tiling(20, overlap), np.random.default_rng(0).random(10**4)
    _, scores = blended(lambda tile: sample(torch.full((2, 20, 20), values[tile.row * 100 + tile.column])), tiling,
                        scores=True)
    for axis, length in ((1, 50), (2, 70)):
        first, second, *_ = tiling.spans(length)
        shared = min(first.end - second.start, 10)
        assert np.abs(np.diff(scores.numpy(), axis=axis)).max() < 2 / shared


def test_a_tile_counts_less_towards_its_border():
    logits = torch.zeros(2, 20, 20)
    logits[0, 3:-3, 3:-3] = 1
    logits[1] = 1 - logits[0]  # wrong at the border
    labels, _ = blended(lambda tile: sample(logits.clone()), Tiling(20, 0.5))
    assert (labels[3:-3, 3:-3] == 0).all()


def test_without_scores_a_pixel_has_the_label_of_the_nearer_tile():
    tiles = Tiling(20, 0.5).tiles(*SIZE)
    labels, _ = blended(lambda tile: sample(torch.eye(len(tiles))[tiles.index(tile)][:, None, None].repeat(
        1, 20, 20), False), Tiling(20, 0.5))
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
