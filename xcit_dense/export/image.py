"""What a model's preprocessor does with an image, inside the graph."""
import torch
from torch import Tensor, nn

from ..compat.mmengine_private import swaps_channels
from ..errors import ConfigError


class Preprocessing(nn.Module):
    """Normalises and pads a batch of images of one size, as mmdet's and mmseg's preprocessors do for prediction.

    Args:
        preprocessor: The ``data_preprocessor`` of a model.

    Raises:
        ConfigError: It has another type, or does not normalise three channels.
    """

    #: Height and width that smaller images are padded to; None if there is no such size.
    pad_size = None
    #: Height and width are padded to multiples of this.
    pad_divisor = 1

    def __init__(self, preprocessor):
        super().__init__()
        # the class that has the forward: a derived class may change anything else
        kind = next((kind.__name__ for kind in type(preprocessor).__mro__ if 'forward' in vars(kind)), None)
        if kind == 'SegDataPreProcessor':
            swaps, self.pad_value = preprocessor.channel_conversion, preprocessor.pad_val
            padding = preprocessor.test_cfg or {}
            self.pad_size, self.pad_divisor = padding.get('size'), padding.get('size_divisor') or 1
        elif kind in ('DetDataPreprocessor', 'ImgDataPreprocessor'):
            swaps, self.pad_value = swaps_channels(preprocessor), preprocessor.pad_value
            self.pad_divisor = preprocessor.pad_size_divisor
        else:
            raise ConfigError(f'model.data_preprocessor is a {type(preprocessor).__name__}, which cannot be exported. '
                              'SegDataPreProcessor and DetDataPreprocessor can')
        mean, std = (torch.as_tensor(getattr(preprocessor, name, fresh)).detach().float().cpu().flatten()
                     for name, fresh in (('mean', 0.), ('std', 1.)))
        if {len(mean), len(std)} - {1, 3}:
            raise ConfigError(f'mean and std of model.data_preprocessor are for {max(len(mean), len(std))} channels, '
                              'but an exported model needs images of three: R, G and B')
        #: Whether the model expects B, G and R, as mmcv reads images, instead of R, G and B.
        self.is_bgr = not swaps
        self.register_buffer('subtracted', mean.expand(3).clone().view(3, 1, 1), persistent=False)
        self.register_buffer('divided_by', std.expand(3).clone().view(3, 1, 1), persistent=False)

    @property
    def mean(self) -> list:
        """Mean of R, G and B."""
        return self._of_rgb(self.subtracted)

    @property
    def std(self) -> list:
        """Standard deviation of R, G and B."""
        return self._of_rgb(self.divided_by)

    @property
    def pads(self) -> bool:
        """Whether images may be padded."""
        return self.pad_size is not None or self.pad_divisor > 1

    def forward(self, image: Tensor) -> Tensor:
        """Return images (B, H, W, 3), RGB, uint8, as input of the model: (B, 3, h, w) float32.

        h and w are H and W, or larger: padding is added at the bottom and at the right.
        """
        x = self.normalised(image)
        height, width = x.shape[-2:]
        if self.pad_size is not None:
            bottom, right = (torch.sym_max(wanted - given, 0) for wanted, given in
                             zip(self.pad_size, (height, width), strict=True))
        elif self.pad_divisor > 1:
            bottom, right = -height % self.pad_divisor, -width % self.pad_divisor
        else:
            return x
        return nn.functional.pad(x, (0, right, 0, bottom), value=self.pad_value)

    def normalised(self, image: Tensor) -> Tensor:
        """Return the result of `forward` before padding."""
        x = image.permute(0, 3, 1, 2)
        if self.is_bgr:
            x = x.flip(1)
        return (x.float() - self.subtracted) / self.divided_by

    def _of_rgb(self, values):
        values = values.flatten().tolist()
        return values[::-1] if self.is_bgr else values
