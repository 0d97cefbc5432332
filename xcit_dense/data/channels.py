"""Images of any number of channels and any numbers: multi-spectral ones, with depth or heat, of one channel."""
import io
from pathlib import Path

import cv2
import numpy as np
from mmcv.transforms import LoadImageFromFile
from mmengine import fileio
from mmengine.registry import TRANSFORMS

from ..errors import ConfigError, DataError

#: What is read by their suffixes beside what OpenCV reads.
ARRAY_SUFFIXES = ('.npy', )
_TIFF_SUFFIXES = ('.tif', '.tiff')


@TRANSFORMS.register_module()
class LoadImageChannels(LoadImageFromFile):
    """Loads images with all their channels, in the order of the file, as float32: ``img`` (H, W, channels).

    ``.npy`` holds an array (H, W, channels) or (H, W); a TIFF file its channels in each pixel, or in pages of one
    channel each; other files what OpenCV reads, RGB or RGBA or grey. Where OpenCV does not read a TIFF file, as with
    more than four channels in each pixel, the package tifffile does, if it is there.

    Args:
        channels: How many an image has.
        backend_args: As for `mmcv.transforms.LoadImageFromFile`.
    """

    def __init__(self, channels: int, backend_args: dict = None):
        if not isinstance(channels, int) or channels < 1:
            raise ConfigError(f'channels of LoadImageChannels must be a number from 1, got {channels!r}')
        super().__init__(to_float32=True, color_type='unchanged', backend_args=backend_args)
        self.channels = channels

    def transform(self, results: dict) -> dict:
        """Load an image; arguments and result as in mmcv.

        Raises:
            DataError: The file cannot be read, or has another number of channels.
        """
        path = results['img_path']
        try:
            data = fileio.get(path, backend_args=self.backend_args)
        except OSError as error:
            raise DataError(f'{path} cannot be read: {error.strerror or error}') from error
        image = self.check(decode(data, path), path)
        results.update(img=image, img_shape=image.shape[:2], ori_shape=image.shape[:2], channels_of_file=True)
        return results

    def check(self, array, name) -> np.ndarray:
        """Return an array (H, W, channels) or (H, W) as ``img``.

        Raises:
            DataError: It is another one.
        """
        image = array[..., None] if array.ndim == 2 else array
        if image.ndim != 3 or image.shape[2] != self.channels or image.size == 0:
            raise DataError(f'{name} has the shape {array.shape}, and the config asks for (H, W, {self.channels}): '
                            'channels of LoadImageChannels, in_channels of the backbone and mean and std of the '
                            'data_preprocessor are as many as the images have')
        if image.dtype.kind not in 'buif':
            raise DataError(f'{name} holds {image.dtype}, which are no numbers of an image')
        return np.ascontiguousarray(image, dtype=np.float32)

    def __repr__(self):
        return f'{type(self).__name__}(channels={self.channels})'


def decode(data: bytes, path) -> np.ndarray:
    """Return the array (H, W, C) or (H, W) of the bytes of an image file, its channels in the order of the file.

    Raises:
        DataError: They cannot be read.
    """
    suffix = Path(str(path)).suffix.lower()
    if suffix in ARRAY_SUFFIXES:
        try:
            return np.load(io.BytesIO(data), allow_pickle=False)
        except (EOFError, OSError, ValueError) as error:
            raise DataError(f'{path} cannot be read: {error}') from error
    buffer = np.frombuffer(data, np.uint8)
    try:
        found, pages = cv2.imdecodemulti(buffer, cv2.IMREAD_UNCHANGED) if suffix in _TIFF_SUFFIXES else (False, ())
        if found and len(pages) > 1 and all(page.shape == pages[0].shape and page.ndim == 2 for page in pages):
            return np.stack(pages, -1)
        image = pages[0] if found else cv2.imdecode(buffer, cv2.IMREAD_UNCHANGED) if data else None
    except cv2.error:
        image = None
    if image is None and suffix in _TIFF_SUFFIXES:
        return _decode_tiff(data, path)
    if image is None:
        raise DataError(f'{path} cannot be read: it is no image, or is damaged')
    return image[..., [2, 1, 0, *range(3, image.shape[2])]] if image.ndim == 3 and image.shape[2] >= 3 else image


def _decode_tiff(data, path):
    try:
        import tifffile
    except ImportError:
        raise DataError(f'{path} cannot be read by OpenCV, which takes up to four channels in each pixel, or pages of '
                        'one channel; the package tifffile reads more: pip install tifffile') from None
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            series = file.series[0]
            image, axes = series.asarray(), series.axes
    except Exception as error:  # of many types, for whatever the bytes are
        raise DataError(f'{path} cannot be read: {error}') from error
    # the axes that are not height and width are channels, whether in each pixel, in planes or in pages
    others = [i for i, axis in enumerate(axes) if axis not in 'YX']
    image = np.moveaxis(image, others, range(-len(others), 0)) if others else image
    return image.reshape(*image.shape[:2], -1) if others else image


def stretched(image) -> np.ndarray:
    """Return the first three channels of an image (H, W, C), or its first where it has fewer, as RGB (H, W, 3) uint8.

    Each is stretched from its darkest to its brightest hundredth; numbers that are none count as dark.
    """
    shown = image[..., :3] if image.shape[2] >= 3 else image[..., :1].repeat(3, 2)
    shown = np.nan_to_num(shown.astype(np.float64), posinf=0, neginf=0)
    low, high = np.percentile(shown, (1, 99), axis=(0, 1))
    scaled = (shown - low) * (255 / np.maximum(high - low, 1e-12))
    return np.ascontiguousarray(scaled.clip(0, 255).round().astype(np.uint8))
