"""What mmdet lacks, registered there: ``custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmdet'])``."""
import torch
from mmdet.models import DetDataPreprocessor
from mmdet.registry import MODELS

from .errors import ConfigError


@MODELS.register_module()
class ChannelsDetDataPreprocessor(DetDataPreprocessor):
    """mmdet's data preprocessor, for images of any number of channels; mmdet's own takes three or one.

    Args:
        mean: A number for each channel, in the order of the file.
        std: Likewise.

    Other arguments are those of `mmdet.models.DetDataPreprocessor`, but for those that turn BGR and RGB.
    """

    def __init__(self, mean, std, **options):
        if len(mean) != len(std):
            raise ConfigError(f'mean and std of the data_preprocessor must be as many as channels, got {len(mean)} and '
                              f'{len(std)}')
        super().__init__(mean=[0.], std=[1.], **options)
        for name, values in (('mean', mean), ('std', std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(-1, 1, 1), False)
