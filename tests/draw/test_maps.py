"""Label maps over pictures."""
import numpy as np
import pytest

from xcit_dense.draw import class_colours, draw_map
from xcit_dense.draw.colours import ALARM
from xcit_dense.draw.names import chip, text_size

NAMES = ('background', 'disc', 'square')
COLOURS = class_colours(NAMES)


def paper(height=240, width=320):
    return np.full((height, width, 3), (20, 90, 200), np.uint8)


def shows(drawn, name, colour):
    """Whether the name of a class is anywhere in a picture."""
    found = chip(name, text_size(drawn), colour, drawn.shape[1])
    windows = np.lib.stride_tricks.sliding_window_view(drawn[..., 0], found.shape[:2])
    return bool((windows == found[..., 0]).all((2, 3)).any())


@pytest.mark.parametrize('kind', (np.uint8, np.int64, np.uint16))
def test_each_label_has_its_colour(kind):
    labels = np.repeat(np.array([0, 1, 2, 255], kind), 80)[None].repeat(240, 0)
    drawn = draw_map(paper(), labels, NAMES, COLOURS, named=False)
    for place, colour in enumerate(COLOURS):
        assert np.abs(drawn[100, 80 * place + 40] - (0.4 * paper()[0, 0] + 0.6 * np.array(colour))).max() <= 1
    assert np.abs(drawn[100, 280] - 0.25 * paper()[0, 0]).max() <= 1


def test_labels_without_a_class_are_striped():
    drawn = draw_map(paper(), np.full((240, 320), 9), NAMES, COLOURS, named=False)
    assert 0.4 < (drawn == ALARM).all(2).mean() < 0.6
    drawn = draw_map(paper(), np.full((240, 320), 255), [str(i) for i in range(300)], class_colours('a' * 300), ())
    assert not (drawn == ALARM).all(2).any()  # 255 is a class here


def test_every_class_has_its_name_in_its_region():
    labels = np.zeros((240, 320), np.uint8)
    labels[20:220, 20:150], labels[180:200, 250:270] = 1, 2
    drawn = draw_map(paper(), labels, NAMES, COLOURS)
    assert all(shows(drawn, name, colour) for name, colour in zip(NAMES, COLOURS, strict=True))
    assert shows(drawn[20:220, 20:150].copy(), 'disc', COLOURS[1]) or shows(drawn[:, :160], 'disc', COLOURS[1])
    # the name of the small region is next to it
    assert (np.abs(drawn[184:196, 254:266] - (0.4 * paper()[0, 0] + 0.6 * np.array(COLOURS[2]))) <= 1).mean() > 0.9


@pytest.mark.parametrize('size', ((1, 1), (1, 500), (40, 30)))
def test_any_size_can_be_drawn(size):
    drawn = draw_map(paper(*size), np.ones(size, int), NAMES, COLOURS)
    assert drawn.shape == (*size, 3)
