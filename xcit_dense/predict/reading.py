"""Image files read as a config reads its test data, by its own loader."""
import numpy as np
from mmcv.transforms import LoadAnnotations
from mmengine.dataset import Compose

from ..data.datasets import class_of
from ..errors import ConfigError


class ImageReader:
    """The pipeline of a data set, for files without annotations.

    Args:
        dataset: The config of the data set. The first step of its pipeline reads an image; those that read what is
            known of it are left out.

    Raises:
        ConfigError: There is no step.
    """

    def __init__(self, dataset):
        pipeline = dataset.get('pipeline')
        if not pipeline:
            raise ConfigError('the test data set of the config has no pipeline, which says how images are read for '
                              'the model')
        first, *rest = pipeline
        if first.get('backend_args') or first.get('file_client_args'):  # the data set's, and these files are here
            first = {key: value for key, value in first.items() if key not in ('backend_args', 'file_client_args')}
        self._load = Compose([first])
        self._prepare = Compose([
            step for step in rest if not _reads_annotations(class_of(dataset, 'TRANSFORMS', step['type']))])

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

    def prepare(self, loaded) -> dict:
        """Return ``inputs`` and ``data_samples`` of what `load` gave, for the model."""
        return self._prepare(loaded)


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
