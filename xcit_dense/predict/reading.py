"""Image files read as a config reads its test data, by its own loader."""
from typing import NamedTuple

import numpy as np
from mmcv.transforms import LoadAnnotations, LoadImageFromFile
from mmengine.dataset import Compose

from ..data.datasets import class_of
from ..errors import ConfigError


class ReadImage(NamedTuple):
    """An image as a picture (H, W, 3), RGB, uint8, and as ``inputs`` and ``data_samples`` for a model; and its id."""
    picture: np.ndarray
    data: dict
    id: int


class ImageReader:
    """The pipeline of a data set, for files without annotations: steps that read those are left out.

    Args:
        dataset: The config of the data set.
        on_disk: Whether the files lie on a disk, wherever those of the data set lie.

    Raises:
        ConfigError: The pipeline has no step.
    """

    def __init__(self, dataset, on_disk: bool = True):
        pipeline = dataset.get('pipeline')
        if not pipeline:
            raise ConfigError('the test data set of the config has no pipeline, which says how images are read for '
                              'the model')
        kinds = [class_of(dataset, 'TRANSFORMS', step['type']) for step in pipeline]
        # the first of all is a loader of the user's own where there is none of the frameworks
        place = next((i for i, kind in enumerate(kinds)
                      if isinstance(kind, type) and issubclass(kind, LoadImageFromFile)), 0)
        loads = [dict(step) for step in pipeline[:place + 1]]
        for key in ('backend_args', 'file_client_args') if on_disk else ():
            if loads[-1].get(key):
                del loads[-1][key]
        self._load = Compose(loads)
        self._prepare = Compose([step for step, kind in zip(pipeline[place + 1:], kinds[place + 1:], strict=True)
                                 if not _reads_annotations(kind)])

    def load(self, path, image_id) -> dict:
        """Read a file; what the loader of the config raises goes through.

        Returns:
            What the loader gives: ``img`` (H, W) or (H, W, C) beside names and sizes.

        Raises:
            ValueError: It gives nothing.
        """
        loaded = self._load(dict(img_path=str(path), img_id=image_id, seg_fields=[]))
        if loaded is None:
            raise ValueError('the loader of the config gives nothing')
        return loaded

    def read(self, path, image_id) -> ReadImage:
        """Read a file and prepare it for the model; what steps of the pipeline raise goes through."""
        loaded = self.load(path, image_id)
        picture = picture_of(loaded)  # before the other steps, which may work in place
        return ReadImage(picture, self._prepare(loaded), image_id)


def picture_of(loaded) -> np.ndarray:
    """Return what `ImageReader.load` gave as an RGB picture (H, W, 3) uint8: three channels of any, in a range that
    can be seen."""
    image = loaded['img']
    image = image[..., None] if image.ndim == 2 else image
    image = image[..., :3] if image.shape[2] >= 3 else image[..., :1].repeat(3, 2)
    if image.dtype != np.uint8:
        low, high = float(image.min()), float(image.max())
        if low < 0 or high > 255:
            image = (image - low) * (255 / max(high - low, 1e-12))
        image = image.round().astype(np.uint8)
    return np.ascontiguousarray(image[..., ::-1])  # OpenCV's order


def _reads_annotations(kind):
    name = getattr(kind, '__name__', '')
    return (isinstance(kind, type) and issubclass(kind, LoadAnnotations)
            or name.startswith('Load') and ('Annotation' in name or 'Proposals' in name))
