"""Masks that the memory holds cut and compressed are those of the whole picture."""
import numpy as np
import pytest
from pycocotools import mask as mask_api

from xcit_dense.predict.cut_masks import CutMask, CutMasks
from xcit_dense.predict.tiling import Span


def masks(count=300):
    """Masks of all kinds: empty, full, over whole columns, of single pixels."""
    noise = np.random.default_rng(0)
    for _ in range(count):
        mask = np.zeros(noise.integers(1, 9, 2), bool)
        rows, columns = (slice(*np.sort(noise.integers(0, side + 1, 2))) for side in mask.shape)
        mask[rows, columns] = noise.random(mask[rows, columns].shape) < noise.choice([0.3, 0.8, 1])
        yield mask


def test_run_lengths_are_those_of_the_whole_mask():
    for mask in masks():
        assert CutMask.of(mask).rle(*mask.shape) == mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))


def test_a_part_a_sample_and_a_union():
    noise = np.random.default_rng(1)
    for mask in masks():
        height, width = mask.shape
        cut, other = CutMask.of(mask), noise.random(mask.shape) < 0.3
        top, left = noise.integers(-3, 3, 2).tolist()
        padded = np.pad(mask, 9)[9 + top:, 9 + left:][:7, :8]
        assert (cut.within(Span(top, top + 7), Span(left, left + 8)) == padded).all()
        rows, columns = np.arange(0, height, 2), np.arange(0, width, 3)
        assert (cut.sampled(rows, columns) == mask[np.ix_(rows, columns)]).all()
        assert (CutMasks([cut | CutMask.of(other)], height, width)[0] == mask | other).all()


def test_masks_are_used_as_an_array():
    whole = np.zeros((3, 5, 6), bool)
    whole[0, 1:3, 2:4] = whole[2, 4] = True
    found = CutMasks([CutMask.of(mask) for mask in whole], 5, 6)
    assert found.shape == whole.shape and found.dtype == bool and len(found) == 3
    assert (np.asarray(found) == whole).all() and all((a == b).all() for a, b in zip(found, whole, strict=True))
    assert (np.asarray(found[1:]) == whole[1:]).all() and (found[-1] == whole[-1]).all()
    with pytest.raises(IndexError):
        found[3]


def test_a_part_of_a_tile_knows_its_place():
    assert CutMask.of(np.ones((2, 3), bool), 10, 20)[:4] == (10, 20, 2, 3)
