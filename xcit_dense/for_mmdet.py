"""Modules that mmdet lacks. Import: ``custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmdet'])``."""
import torch
from mmdet.models import DetDataPreprocessor
from mmdet.registry import MODELS

from .errors import ConfigError
from .predict.tta import MaskTTAModel
from .text import counted

__all__ = ['ChannelsDetDataPreprocessor', 'MaskTTAModel']


@MODELS.register_module()
class ChannelsDetDataPreprocessor(DetDataPreprocessor):
    """mmdet's data preprocessor, for images with any number of channels; mmdet's own accepts three or one.

    Args:
        mean: The mean of each channel, in the order of the file.
        std: The standard deviation of each channel, in the same order.

    Other arguments are those of `mmdet.models.DetDataPreprocessor`, except those that swap BGR and RGB.
    """

    def __init__(self, mean, std, **options):
        if len(mean) != len(std):
            raise ConfigError('mean and std of the data_preprocessor must have one number for each channel, got '
                              f'{counted(len(mean), "numbers")} in mean and {len(std):,} in std')
        super().__init__(mean=[0.], std=[1.], **options)
        for name, values in (('mean', mean), ('std', std)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(-1, 1, 1), False)
