"""Models loaded from Python, and image files, that several tests of predictions share."""
import numpy as np
import pytest
from PIL import Image

import xcit_dense
from helpers.paths import TINY_SEG_CONFIG


@pytest.fixture(scope='session')
def detector(trained):
    return xcit_dense.load(trained[0], threshold=0)


@pytest.fixture(scope='session')
def segmentor(trained_segmentor):
    return xcit_dense.load(TINY_SEG_CONFIG, trained_segmentor[0])


@pytest.fixture(scope='session')
def path(demo_data):
    """An image of the generated data."""
    return demo_data / 'val2017/000000000001.jpg'


@pytest.fixture(scope='session')
def photograph():
    """A function that writes an image, by default 24 x 40 pixels, whose EXIF tag asks for a turn; returns its path."""

    def write(path, image=None):
        exif = Image.Exif()
        exif[0x0112] = 6
        if image is None:
            image = np.random.default_rng(0).integers(0, 255, (24, 40, 3), dtype=np.uint8)
        Image.fromarray(image).save(path, exif=exif)
        return path

    return write
