"""How a picture is cut into tiles, and which tiles cannot be."""
import numpy as np
import pytest

from xcit_dense.errors import ConfigError
from xcit_dense.predict.tiling import Span, Tiling, tiling_of


@pytest.mark.parametrize('tile, overlap', ((1024, 0.2), (100, 0), (7, 0.5), (10, 0.99), (1, 0), (3, 0.9), (64, 0.75)))
def test_tiles_cover_a_picture_evenly_with_the_overlap_asked(tile, overlap):
    for length in (*range(tile + 1, tile + 40), 10 * tile + 3):
        spans = Tiling(tile, overlap).spans(length)
        assert spans[0].start == 0 and spans[-1].end == length and {end - start for start, end in spans} == {tile}
        steps = np.diff([span.start for span in spans])
        assert steps.min() >= 1 and steps.max() - steps.min() <= 1
        assert tile - steps.max() >= min(int(tile * overlap), tile - 1)
        if len(spans) > 2:  # one fewer would not do
            assert (len(spans) - 2) * max(int(tile * (1 - overlap) + 1e-9), 1) < length - tile


def test_a_picture_that_is_narrow_has_tiles_of_its_width():
    assert Tiling(10, 0).tiles(8, 20) == [(0, 0, (0, 8), (0, 10)), (0, 1, (0, 8), (10, 20))]
    assert Tiling(10).spans(10) == [Span(0, 10)] and Tiling(10).fits(10, 10) and not Tiling(10).fits(10, 11)


@pytest.mark.parametrize('tile, overlap, words', (
    (0, None, ('--tile', '0', '1024')), (-5, None, ('--tile', '-5')), (64.5, None, ('--tile', '64.5')),
    (True, None, ('--tile', 'True')), ('64', None, ('--tile', "'64'")), (64, 1, ('--overlap', '1', '0.2')),
    (64, -0.1, ('--overlap', '-0.1')), (64, float('nan'), ('--overlap', 'nan')), (64, 20, ('--overlap', '20')),
    (None, 0.3, ('--overlap', '0.3', '--tile')), (None, 0., ('--overlap', '--tile'))))
def test_tiles_that_cannot_be(tile, overlap, words):
    with pytest.raises(ConfigError) as error:
        tiling_of(tile, overlap)
    assert all(word in str(error.value) for word in words)


def test_options_of_tiles():
    assert tiling_of(None, None) is None and tiling_of(64, None) == Tiling(64, 0.2) and tiling_of(64, 0).overlap == 0
    Tiling(9).check(9)
    with pytest.raises(ConfigError, match='--tile.*9.*10'):
        Tiling(9).check(10)
