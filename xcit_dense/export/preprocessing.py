"""The beginning of every graph: images as a user has them, normalised and padded."""
import torch
from torch import Tensor, nn

from ..compat.internals import swaps_channels
from ..errors import ConfigError

#: Height and width for tracing; a file accepts any batch, height and width.
TRACED = 224, 288
#: Images as the input of a graph: an example, and its free dimensions.
IMAGE = torch.zeros(2, *TRACED, 3, dtype=torch.uint8), dict.fromkeys(range(3), torch.export.Dim.DYNAMIC)


class Preprocessing(nn.Module):
    """Normalises and pads a batch of images of one size, as mmdet's and mmseg's preprocessors do for prediction.

    `ConfigError` if the preprocessor has another type, pads to a fixed size, or does not normalise three channels.
    """

    def __init__(self, preprocessor):
        super().__init__()
        # the class that has the forward: a derived class may change anything else
        kind = next((kind.__name__ for kind in type(preprocessor).__mro__ if 'forward' in vars(kind)), None)
        if kind == 'SegDataPreProcessor':
            swaps, self.pad_value = preprocessor.channel_conversion, preprocessor.pad_val
            padding = preprocessor.test_cfg or {}
            if padding.get('size'):
                raise ConfigError(f'model.data_preprocessor.test_cfg.size={padding["size"]} cannot be exported. '
                                  'Use size_divisor')
            self.pad_divisor = padding.get('size_divisor') or 1  # height and width become multiples of it
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
        for name, values in dict(mean=mean, std=std).items():  # of R, G and B
            values = values.expand(3).flip(0) if self.is_bgr else values.expand(3).clone()
            self.register_buffer(name, values.view(3, 1, 1), persistent=False)

    def forward(self, image: Tensor) -> Tensor:
        """Return images (B, H, W, 3), RGB, uint8, as input of the model: (B, 3, h, w) float32.

        h and w are H and W, or larger: padding is added at the bottom and at the right.
        """
        x = self.normalised(image)
        if self.pad_divisor == 1:
            return x
        bottom, right = (-side % self.pad_divisor for side in x.shape[-2:])
        return nn.functional.pad(x, (0, right, 0, bottom), value=self.pad_value)

    def normalised(self, image: Tensor) -> Tensor:
        """Return the result of `forward` before padding."""
        x = (image.permute(0, 3, 1, 2).float() - self.mean) / self.std
        return x.flip(1) if self.is_bgr else x
