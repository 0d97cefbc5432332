"""Images with any number of channels and any values: multispectral, with depth or heat, or single-channel."""
import io
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine import fileio
from mmengine.registry import TRANSFORMS

from .._utils.text import counted, first_line
from ..errors import DataError

#: From here on, the values of 16-bit images leave enough if only their upper 8 bits are read.
FULL = 2**14
#: Suffixes of files that are read in addition to those that OpenCV reads.
ARRAY_SUFFIXES = ('.npy', )
_TIFF_SUFFIXES = ('.tif', '.tiff')
#: Suffixes of files that may hold more than a viewable image.
CHANNEL_SUFFIXES = (*ARRAY_SUFFIXES, *_TIFF_SUFFIXES)
#: Added to errors on TIFF files.
_TIFFFILE = ('' if find_spec('tifffile') else '. OpenCV reads only some TIFF files: up to four channels per pixel, or '
             'pages of one channel. The package tifffile reads all of them: pip install tifffile')


@TRANSFORMS.register_module()
class LoadImageChannels(LoadImageFromFile):
    """Loads images with all their channels, in the order of the file, as float32: ``img`` (H, W, channels).

    ``.npy`` files hold an array (H, W, channels) or (H, W). TIFF files hold their channels in each pixel or in pages of
    one channel each. Other files are read by OpenCV: RGB, RGBA or grey. TIFF files are read by the package tifffile if
    it is installed, otherwise by OpenCV, which supports at most four channels per pixel.

    Args:
        channels: The number of channels of each image.
        backend_args: As for `mmcv.transforms.LoadImageFromFile`.
    """

    def __init__(self, channels: int, backend_args: dict = None):
        super().__init__(to_float32=True, color_type='unchanged', backend_args=backend_args)
        self.channels = channels

    def transform(self, results: dict) -> dict:
        """Load an image; arguments and result as in mmcv.

        Raises:
            DataError: The file cannot be read, has another number of channels, or values that are NaN or infinite.
        """
        path = results['img_path']
        image = self.check(decode(fileio.get(path, backend_args=self.backend_args), path), path)
        results.update(img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2], channels_of_file=True)
        return results

    def check(self, array, name) -> np.ndarray:
        """Return an array (H, W, channels) or (H, W) as ``img``; `DataError`: other shape or type, NaN or infinity."""
        image = array[..., None] if array.ndim == 2 else array
        if image.ndim != 3 or image.shape[2] != self.channels or image.size == 0:
            is_tiff = Path(str(name)).suffix.lower() in _TIFF_SUFFIXES
            raise DataError(f'{name} has the shape {array.shape}, but the config expects (H, W, {self.channels}). '
                            'Set channels of LoadImageChannels, in_channels of the backbone, and mean and std of the '
                            'data_preprocessor for the channels of your images' + (_TIFFFILE if is_tiff else ''))
        if image.dtype.kind not in 'buif':  # of complex numbers, only the real parts would be left
            raise DataError(f'{name} has values of type {image.dtype}; an image must have integers or floats')
        image = np.ascontiguousarray(image, dtype=np.float32)
        if wrong := image.size - np.count_nonzero(np.isfinite(image)):
            raise DataError(f'{name} has {counted(wrong, "values")} of NaN or infinity, which would spoil all weights '
                            'in training. Replace them, for example with the mean')
        return image


def decode(data: bytes, path) -> np.ndarray:
    """Return the array (H, W, C) or (H, W) of an image file's bytes, channels in its order; `DataError`: damaged."""
    suffix = Path(str(path)).suffix.lower()
    try:
        if suffix in ARRAY_SUFFIXES:
            return np.load(io.BytesIO(data), allow_pickle=False)
        image = _decode_tiff(data) if suffix in _TIFF_SUFFIXES else _as_in_file(
            cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None)
    except Exception as error:  # many types, depending on the bytes
        raise DataError(f'{path} cannot be read: {first_line(error)}') from error
    if image is None:
        raise DataError(f'{path} cannot be read: it is not an image, or is damaged'
                        + (_TIFFFILE if suffix in _TIFF_SUFFIXES else ''))
    return image


def _as_in_file(image):
    """Return an image read by OpenCV, or None, with its colours as RGB."""
    has_colours = image is not None and image.ndim == 3 and image.shape[2] >= 3
    return image[..., [2, 1, 0, *range(3, image.shape[2])]] if has_colours else image


def _decode_tiff(data):
    try:
        import tifffile
    except ImportError:
        found, pages = cv2.imdecodemulti(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
        if len(pages) > 1 and all(page.shape == pages[0].shape and page.ndim == 2 for page in pages):
            return np.stack(pages, -1)
        return _as_in_file(pages[0]) if found else None
    with tifffile.TiffFile(io.BytesIO(data)) as file:
        image, axes = file.series[0].asarray(), file.series[0].axes
    # all axes but height and width are channels, whether in each pixel, in planes or in pages
    others = [i for i, axis in enumerate(axes) if axis not in 'YX']
    image = np.moveaxis(image, others, range(-len(others), 0)) if others else image
    return image.reshape(*image.shape[:2], -1) if others else image


def stretched(image) -> np.ndarray:
    """Return the first three channels of an image (H, W, C), or only the first if it has fewer, as RGB (H, W, 3) uint8.

    Each is stretched between its 1st and 99th percentile; NaN and infinity count as dark.
    """
    shown = image[..., :3] if image.shape[2] >= 3 else image[..., :1].repeat(3, 2)
    shown = np.nan_to_num(shown.astype(np.float64), posinf=0, neginf=0)
    low, high = np.percentile(shown, (1, 99), axis=(0, 1))
    scaled = (shown - low) * (255 / np.maximum(high - low, 1e-12))
    return np.ascontiguousarray(scaled.clip(0, 255).round().astype(np.uint8))
