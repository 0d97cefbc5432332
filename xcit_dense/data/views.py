"""The views of an image that DINO compares."""
import numpy as np
import torch
from mmcv.transforms import BaseTransform
from mmengine.registry import TRANSFORMS
from PIL import Image, ImageFilter
from torchvision import transforms

from ..errors import DataError

#: Probability of a blur of the first global view, the second and the local ones; the range of its radius in pixels.
_BLURS, _RADII = (1., 0.1, 0.5), (0.1, 2.)


@TRANSFORMS.register_module()
class MultiCrop(BaseTransform):
    """Cuts views out of an image: two global ones of most of it, and local ones of small parts at a lower resolution.

    Each view is flipped and changed in colour by itself. Paper: `Emerging Properties in Self-Supervised Vision
    Transformers <https://arxiv.org/abs/2104.14294>`_. All random numbers are from torch's generator.

    Args:
        global_size: Side of the global views in pixels.
        local_size: Side of the local views in pixels.
        num_local: Number of local views.
        global_ratio: The least and the largest share of the area of the image in a global view.
        local_ratio: The same for a local view.
        blurs: Whether to blur and solarise some views. In small views, little would be left.

    Raises:
        ValueError: A value is out of range.
    """

    def __init__(self, global_size: int = 224, local_size: int = 96, num_local: int = 10, *,
                 global_ratio=(0.25, 1.), local_ratio=(0.05, 0.25), blurs: bool = True):
        for name, value, least in (('global_size', global_size, 1), ('local_size', local_size, 1),
                                   ('num_local', num_local, 0)):
            if not isinstance(value, int) or value < least:
                raise ValueError(f'{name} of MultiCrop must be a whole number of at least {least}, got {value!r}')
        for name, (low, high) in dict(global_ratio=global_ratio, local_ratio=local_ratio).items():
            if not 0 < low <= high <= 1:
                raise ValueError(f'{name} of MultiCrop must be two numbers above 0 and at most 1, the lower one '
                                 f'first; got {low!r}, {high!r}')
        self.global_size, self.local_size, self.num_local = global_size, local_size, num_local
        blur = _BLURS if blurs else (0., 0., 0.)
        self.views = [_view(global_size, global_ratio, blur[0]), _view(global_size, global_ratio, blur[1], blurs),
                      *[_view(local_size, local_ratio, blur[2])] * num_local]

    def transform(self, results: dict) -> dict:
        """Replace ``img`` (H, W, 3), uint8 and BGR, by a list of the views, the global ones first.

        Raises:
            DataError: The image has another type or number of channels.
        """
        image = results['img']
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise DataError(f'MultiCrop needs images of three channels of bytes, as LoadImageFromFile reads them; got '
                            f'the shape {image.shape} and the type {image.dtype}')
        image = Image.fromarray(np.ascontiguousarray(image[..., ::-1]))
        results['img'] = [np.ascontiguousarray(np.asarray(view(image))[..., ::-1]) for view in self.views]
        return results

    @property
    def summary(self) -> str:
        """The numbers and sizes of the views as text."""
        return f'2 of {self.global_size} x {self.global_size} pixels and {self.num_local} of ' \
               f'{self.local_size} x {self.local_size}'

    def __repr__(self):
        return f'{type(self).__name__}({self.summary})'


def _view(size, ratio, blur, solarises=False):
    """Return a function from an image to a view of it, both of PIL."""
    steps = [transforms.RandomResizedCrop(size, ratio, interpolation=transforms.InterpolationMode.BICUBIC),
             transforms.RandomHorizontalFlip(),
             transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], 0.8),
             transforms.RandomGrayscale(0.2)]
    if blur:
        steps.append(transforms.RandomApply([_blurred], blur))
    if solarises:
        steps.append(transforms.RandomSolarize(128, 0.2))
    return transforms.Compose(steps)


def _blurred(image):
    return image.filter(ImageFilter.GaussianBlur(torch.empty(1).uniform_(*_RADII).item()))
