"""Images of other than three channels, and of other numbers than 0 to 255: how they are read, and how they look."""
import io
import sys

import cv2
import numpy as np
import pytest

from xcit_dense.data.channels import LoadImageChannels, decode, stretched
from xcit_dense.data.files import read_header
from xcit_dense.errors import DataError


@pytest.fixture
def without_tifffile(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tifffile', None)


def noise(channels, kind):
    values = np.random.default_rng(0).uniform(0, 200 if kind == 'uint8' else 4000, (6, 9, channels))
    return values.astype(kind)[..., 0] if channels == 1 else values.astype(kind)


def write(path, array):
    """Write channels in the order of the array."""
    if path.suffix == '.npy':
        np.save(path, array)
    elif array.ndim == 3 and array.shape[2] not in (3, 4):
        cv2.imwritemulti(str(path), [np.ascontiguousarray(array[..., i]) for i in range(array.shape[2])])
    else:
        cv2.imwrite(str(path), array[..., [2, 1, 0, *range(3, array.shape[2])]] if array.ndim == 3 else array,
                    [cv2.IMWRITE_TIFF_COMPRESSION, 1])  # without loss
    return path


def load(path, channels=5):
    return LoadImageChannels(channels)(dict(img_path=str(path)))


def test_all_channels_come_in_the_order_of_the_file(tmp_path, without_tifffile):
    for name, channels, kind in (
            *((f'a{suffix}', channels, kind) for channels in (1, 2, 3, 4, 5, 12)
              for kind in ('uint8', 'uint16', 'float32') for suffix in ('.npy', '.tif')),
            ('a.npy', 5, 'int64'), ('a.TIFF', 5, 'uint16'), ('a.png', 1, 'uint8'), ('a.png', 3, 'uint16')):
        array = noise(channels, kind)
        path = write(tmp_path / name, array)
        loaded = load(path, channels)
        assert loaded['img'].shape == (6, 9, channels) and loaded['img'].dtype == np.float32, (name, channels, kind)
        assert np.array_equal(loaded['img'], array.reshape(6, 9, channels).astype(np.float32)), (name, channels, kind)
        assert loaded['img_shape'] == loaded['ori_shape'] == (6, 9)
        assert read_header(path)['size'] == read_header(path)['turned'] == [9, 6]


def test_another_number_of_channels_is_named(tmp_path, without_tifffile):
    for name, channels in (('a.tif', 6), ('a.npy', 1)):
        path = write(tmp_path / name, noise(5, 'uint16'))
        with pytest.raises(DataError, match=rf'{path} .*\(6, 9, 5\).*\(H, W, {channels}\)'):
            load(path, channels)


def test_what_cannot_be_read_is_named(tmp_path, without_tifffile):
    """Without running anything that a file holds."""
    for name, data in (('a.npy', b'\x93NUMPY\x01'), ('a.tif', b'II*\0'), ('a.png', b''), ('a.png', b'x')):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DataError, match=f'{name} cannot be read'):
            load(tmp_path / name)
    np.save(tmp_path / 'a.npy', np.array([object()]), allow_pickle=True)
    with pytest.raises(DataError, match='a.npy'):
        load(tmp_path / 'a.npy', 1)


def test_values_that_are_no_numbers_are_refused(tmp_path):
    """As satellites' images have where they saw nothing: one would make all weights NaN."""
    for values, words in (((np.nan, 1), 'has 1 value .*NaN'), ((np.inf, -np.inf), 'has 2 values .*NaN'),
                          ((1j, 2), 'has values of type complex')):
        array = noise(5, 'complex64' if 1j in values else 'float32')
        array[2, 3, :2] = values
        np.save(tmp_path / 'a.npy', array)
        with pytest.raises(DataError, match=f'a.npy {words}'):
            load(tmp_path / 'a.npy')
    np.save(tmp_path / 'a.npy', noise(5, 'float32') > 0)
    assert set(np.unique(load(tmp_path / 'a.npy')['img'])) <= {0, 1}  # masks are numbers


def test_tifffile_reads_what_opencv_does_not():
    """Channels in each pixel, in planes and in pages."""
    tifffile = pytest.importorskip('tifffile')
    array = noise(5, 'uint16')
    for options in (dict(planarconfig='contig'), dict(planarconfig='separate'), {}):
        file = io.BytesIO()
        tifffile.imwrite(file, array if options.get('planarconfig') == 'contig' else np.moveaxis(array, 2, 0),
                         photometric='minisblack', **options)
        assert np.array_equal(decode(file.getvalue(), 'a.tif'), array)


def test_the_first_channels_are_stretched_for_the_eye():
    image = np.zeros((20, 10, 5), np.float32)
    image[:, :, 0] = np.linspace(100, 4000, 200).reshape(20, 10)
    image[19, 9, 0] = 1e6  # what stands alone changes no other
    image[:10, :, 1], image[0, :2, 2] = -1, (np.nan, np.inf)
    image[1:, :, 3] = 1e9
    shown = stretched(image)
    assert shown.shape == (20, 10, 3) and shown.dtype == np.uint8
    assert shown[0, 0, 0] == 0 and shown[19, 9, 0] == 255 and 120 < shown[10, 0, 0] < 135
    assert set(shown[..., 1].ravel()) == {0, 255} and not shown[..., 2].any()
    assert (stretched(image[..., :2]) == stretched(image)[..., :1]).all()
