"""Colours of classes: the same everywhere, and different from each other."""
import colorsys

import numpy as np
import pytest

from xcit_dense.draw.colours import BLACK, WHITE, class_colours, ink_on


def test_a_palette_is_used_where_it_has_all_classes():
    palette = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert class_colours('ab', palette) == [(1, 2, 3), (4, 5, 6)]
    assert all(type(value) is int for colour in class_colours('ab', palette) for value in colour)
    for missing in (None, [], palette[:1], 'random'):
        assert class_colours('ab', missing) == class_colours('ab')


def test_a_class_has_one_colour_in_a_detector_and_in_a_segmentor():
    assert class_colours(['background', 'disc', 'star'])[1:] == class_colours(['disc', 'star'])
    assert class_colours(['disc', 'star', 'cross'])[:2] == class_colours(['disc', 'star'])


def test_twenty_classes_look_different():
    """No two have nearly the same hue and tone."""
    colours = class_colours([str(i) for i in range(20)])
    nearest = min(np.abs(np.subtract(a, b)).sum() for i, a in enumerate(colours) for b in colours[:i])
    assert nearest > 50
    assert len({round(colorsys.rgb_to_hsv(*colour)[1], 1) for colour in colours}) > 1


@pytest.mark.parametrize('colour, ink', (((255, 255, 0), BLACK), ((0, 0, 142), WHITE), ((250, 250, 248), BLACK),
                                         ((176, 0, 32), WHITE), ((0, 220, 0), WHITE)))
def test_text_is_dark_on_light_colours(colour, ink):
    assert ink_on(colour) == ink
