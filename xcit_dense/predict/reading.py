"""Images read as a config reads its test data, by its own loader: files, arrays and PIL images, whole or in tiles."""
import os
import re
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
import torch
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.dataset import Compose
from mmengine.structures import InstanceData, PixelData
from PIL import Image, ImageOps

from ..data.channels import FULL, LoadImageChannels, stretched
from ..data.datasets import DataSet
from ..data.pipelines import turns_images
from ..errors import ConfigError, DataError


class ReadImage(NamedTuple):
    """An image as an array (H, W, 3), RGB, uint8, and as ``inputs`` and ``data_samples`` for a model."""
    picture: np.ndarray
    data: dict

    def shown(self, sample, longest: int = None) -> tuple:
        """Return what to draw: image and sample as they are; those of images in tiles may be reduced."""
        return self.picture, sample


class ImageReader:
    """The pipeline of a data set without the steps that read annotations.

    Args:
        dataset: The config of the data set.
        on_disk: Whether the files are on disk, even if those of the data set are elsewhere.

    Raises:
        ConfigError: The pipeline has no step.
    """

    def __init__(self, dataset, on_disk: bool = True):
        dataset = DataSet.of(dataset)
        pipeline = dataset.get('pipeline')
        if not pipeline:
            raise ConfigError('the test data set of the config has no pipeline, which defines how images are read. '
                              'Add one to the config')
        kinds = [dataset.class_of('TRANSFORMS', step['type']) for step in pipeline]
        # without a loader of the frameworks, the first step is a user's own loader
        place = next((i for i, kind in enumerate(kinds)
                      if isinstance(kind, type) and issubclass(kind, LoadImageFromFile)), 0)
        loads = [dict(step) for step in pipeline[:place + 1]]
        for key in ('backend_args', 'file_client_args') if on_disk else ():
            loads[-1].pop(key, None)
        self._load = Compose(loads)
        self._turns = turns_images(dataset)
        self._prepare = Compose([step for step, kind in zip(pipeline[place + 1:], kinds[place + 1:], strict=True)
                                 if not reads_annotations(kind)])

    def load(self, path) -> dict:
        """Read a file; errors of the config's loader are passed on.

        Returns:
            The output of the loader: ``img`` (H, W) or (H, W, C), names and sizes.

        Raises:
            DataError: It is too large for OpenCV or the memory.
        """
        try:
            loaded = self._load(dict(img_path=str(path), img_id=0, seg_fields=[]))
        except (cv2.error, MemoryError) as error:
            if isinstance(error, cv2.error) and not re.search('CV_IO_MAX_IMAGE|Insufficient memory', str(error)):
                raise
            raise DataError(f'{path} has more pixels than OpenCV or the memory takes. Cut it into several files, with '
                            'any tool (docs/predicting.md#large-images), and predict these') from error
        if loaded and loaded['img'].max() < FULL >> 8 and not loaded.get('channels_of_file') and getattr(
                cv2.imread(str(path), cv2.IMREAD_UNCHANGED), 'dtype', None) == np.uint16 != loaded['img'].dtype:
            warnings.warn('of 16-bit images only the upper 8 bits are read, and some hardly use them: scale them as '
                          'in training, or train with LoadImageChannels', stacklevel=2)
        return loaded

    def load_array(self, array) -> dict:
        """Return what `load` would return for a lossless file with the same content as an array.

        Args:
            array: RGB (H, W, 3) or grey (H, W), uint8; if the config reads images of any channels
                (`LoadImageChannels`), (H, W, C) of any number type.

        Raises:
            DataError: The array has another shape or type.
        """
        loader = self._load.transforms[-1]
        if isinstance(loader, LoadImageChannels):
            image = loader.check(array, 'the array')
        else:
            array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
            if (array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] not in ((), (3, ))
                    or not array.size):
                raise DataError('an image must be an array of uint8 from 0 to 255, (H, W, 3) in RGB or (H, W) in grey, '
                                f'and a batch a list of them; got {array.shape} of {array.dtype}')
            image = np.ascontiguousarray(array[..., ::-1]) if array.ndim == 3 else array[..., None].repeat(3, 2)
            is_standard = getattr(type(loader), 'transform', None) is LoadImageFromFile.transform
            if len(self._load.transforms) > 1 or not is_standard or not loader.color_type.startswith('color'):
                with tempfile.TemporaryDirectory() as folder:  # read as the loader does, whatever that is
                    file = Path(folder, 'image.png')
                    cv2.imwrite(str(file), image)
                    return self.load(file)
            image = image.astype(np.float32) if loader.to_float32 else image
        return dict(img_path=None, img_id=0, seg_fields=[], img=image, img_shape=image.shape[:2],
                    ori_shape=image.shape[:2], channels_of_file=isinstance(loader, LoadImageChannels))

    def read(self, image, tiling=None):
        """Read an image and prepare it for the model; errors of pipeline steps are passed on.

        Args:
            image: A path, an array as for `load_array`, or a PIL image.
            tiling: A `xcit_dense.predict.tiles.Tiling`, or None.

        Returns:
            A `ReadImage`; or a `BigImage` if there is a tiling and the image does not fit into one tile.
        """
        loaded = self.open(image)
        is_big = tiling and not tiling.fits(*loaded['img'].shape[:2])
        return BigImage(loaded, self, tiling) if is_big else self.prepare(loaded)

    def open(self, image) -> dict:
        """Return what `load` returns, for an image of any type that `read` accepts.

        Raises:
            DataError: It is of another type.
        """
        if isinstance(image, (str, os.PathLike)):
            return self.load(image)
        if isinstance(image, Image.Image):
            if isinstance(self._load.transforms[-1], LoadImageChannels) and image.mode != 'P':
                return self.load_array(np.asarray(image))
            if image.mode[:1] in 'IF':
                raise DataError(f'a PIL image of mode {image.mode} has more than 8 bits. Scale it as in training, to '
                                'an array (H, W, 3), RGB, uint8; or train with LoadImageChannels')
            image = np.asarray((ImageOps.exif_transpose(image) if self._turns else image).convert('RGB'))
        if isinstance(image, np.ndarray):
            return self.load_array(image)
        raise DataError('an image must be a path, an array (H, W, 3), RGB, uint8, or a PIL image; several must be a '
                        f'list or tuple; got {type(image).__name__}')

    def prepare(self, loaded) -> ReadImage:
        """Prepare the result of `open`, or a part of it, for the model; it may be changed in place."""
        picture = picture_of(loaded)  # before the other steps, which may work in place
        return ReadImage(picture, self._prepare(loaded))


def picture_of(loaded) -> np.ndarray:
    """Return the result of `ImageReader.load` as RGB (H, W, 3) uint8: three of its channels, in a visible range."""
    image = loaded['img']
    if loaded.get('channels_of_file'):  # in their own order
        return stretched(image)
    image = image[..., None] if image.ndim == 2 else image
    image = image[..., :3] if image.shape[2] >= 3 else image[..., :1].repeat(3, 2)
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        if low < 0 or high > 255:
            image = (image - low) * (255 / max(high - low, 1e-12))
        image = image.round().astype(np.uint8)
    return np.ascontiguousarray(image[..., ::-1])  # OpenCV's order


def reads_annotations(kind):
    name = getattr(kind, '__name__', '')
    return (isinstance(kind, type) and issubclass(kind, LoadAnnotations)
            or name.startswith('Load') and ('Annotation' in name or 'Proposals' in name))


class BigImage:
    """An image that is larger than a tile, in memory.

    Args:
        source: What the config's loader returns.
        reader: The `ImageReader` that prepares tiles.
    """

    def __init__(self, source, reader, tiling):
        self._source, self.size, self._reader = source, source['img'].shape[:2], reader
        self.tiles, self.margin = tiling.tiles(*self.size), max(2, tiling.tile // 100)

    def read(self):
        """Yield pairs of a `Tile` and its `ReadImage`, row by row."""
        for tile in self.tiles:
            part = self._source['img'][slice(*tile.y), slice(*tile.x)].copy()  # steps of the pipeline may work in place
            yield tile, self._reader.prepare(dict(self._source, img=part, img_shape=part.shape[:2],
                                                  ori_shape=part.shape[:2]))

    def shown(self, sample, longest: int = None) -> tuple:
        """Return what to draw: the image as RGB (h, w, 3) uint8, and its sample, at the same size.

        Args:
            sample: The sample of the image. Its masks are read one by one if they are drawn in the look of this
                package.
            longest: Both are reduced if a side is longer.
        """
        share = min(1, (longest or max(self.size)) / max(self.size))
        height, width = (max(round(length * share), 1) for length in self.size)
        # the pixels of the image that represent it in the picture
        rows, columns = (((np.arange(reduced) + 0.5) * (length / reduced)).astype(np.int64)
                         for length, reduced in zip(self.size, (height, width), strict=True))
        picture = picture_of(self._source)
        if share < 1:
            picture = cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA)
        if 'pred_sem_seg' in sample:
            labels = torch.from_numpy(sample.pred_sem_seg.data[0][np.ix_(rows, columns)].astype(np.int64))
            return picture, type(sample)(pred_sem_seg=PixelData(data=labels[None]))
        found = sample.pred_instances
        scale = torch.tensor([width / self.size[1], height / self.size[0]] * 2, dtype=torch.float32)
        small = InstanceData(bboxes=found.bboxes * scale, labels=found.labels, scores=found.scores)
        if 'masks' in found:
            small.masks = [partial(mask.sampled, rows, columns) for mask in found.masks]
        return picture, type(sample)(pred_instances=small)
