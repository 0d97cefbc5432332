"""Pictures that are read strip by strip are what the loader of the config gives."""
import sys

import cv2
import numpy as np
import pytest
from mmengine.registry import init_default_scope
from PIL import Image

from xcit_dense.errors import DataError
from xcit_dense.predict.big_images import TiledReader, _Loaded, _Strips
from xcit_dense.predict.reading import ImageReader
from xcit_dense.predict.tiling import Tiling


def reader_of(**options):
    init_default_scope('mmseg')
    return ImageReader(dict(pipeline=[dict(type='LoadImageFromFile', **options), dict(type='PackSegInputs')]))


@pytest.fixture
def image():
    noise = np.random.default_rng(0)
    return cv2.resize(noise.integers(0, 255, (23, 31, 3), np.uint8), (311, 233), interpolation=cv2.INTER_CUBIC)


def read(path, **options):
    return TiledReader(reader_of(**options), Tiling(64, 0.3)).read(path, 0)


@pytest.mark.parametrize('grey', (False, True))
@pytest.mark.parametrize('suffix', ('jpg', 'png', 'tif'))
def test_strips_are_the_pixels_of_the_loader(suffix, grey, image, tmp_path):
    pytest.importorskip('pyvips')
    path = tmp_path / f'a.{suffix}'
    cv2.imwrite(str(path), image[..., 0] if grey else image)
    big, whole = read(path), cv2.imread(str(path))[..., ::-1]
    assert isinstance(big._source, _Strips) and (big.height, big.width) == whole.shape[:2]
    for _ in range(2):  # more than once
        tiles = list(big.read())
        assert len(tiles) == len(big.tiles) and [tile for tile, _ in tiles] == big.tiles
        for tile, part in tiles:
            assert (part.picture == whole[slice(*tile.y), slice(*tile.x)]).all()
    assert (big.picture() == whole).all() and big.picture(100).shape == (75, 100, 3)
    assert abs(big.picture(100).mean() - whole.mean()) < 2


@pytest.mark.parametrize('kind', ('turned', 'alpha', '16 bits', 'other loader', 'array', 'no pyvips'))
def test_what_strips_would_not_show_alike_is_read_whole(kind, image, tmp_path, monkeypatch):
    path, options = tmp_path / 'a.png', {}
    if kind == 'turned':
        exif = Image.Exif()
        exif[0x0112] = 6
        path = tmp_path / 'a.jpg'
        Image.fromarray(image).save(path, exif=exif)
    elif kind == 'alpha':
        cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_BGR2BGRA))
    elif kind == '16 bits':
        cv2.imwrite(str(path), image.astype(np.uint16) * 256)
    else:
        cv2.imwrite(str(path), image)
        options = dict(color_type='grayscale') if kind == 'other loader' else {}
    if kind == 'no pyvips':
        monkeypatch.setitem(sys.modules, 'pyvips', None)
    big = read(cv2.imread(str(path)) if kind == 'array' else path, **options)
    assert isinstance(big._source, _Loaded)
    tile, part = next(iter(big.read()))
    assert (part.picture == big.picture()[slice(*tile.y), slice(*tile.x)]).all()
    assert (big.height > big.width) == (kind == 'turned')


@pytest.mark.parametrize('suffix', ('jpg', 'png'))
def test_a_file_that_breaks_off_is_named(suffix, image, tmp_path):
    """OpenCV does not read it either."""
    pytest.importorskip('pyvips')
    path = tmp_path / f'a.{suffix}'
    cv2.imwrite(str(path), image)
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])
    with pytest.raises(DataError, match=f'a.{suffix} cannot be read beyond row'):
        list(read(path).read())
