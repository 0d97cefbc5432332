"""Modules that mmseg lacks. Import: ``custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg'])``."""
from .data.image_folders import ImageFolderDataset
from .predict.low_memory import LowMemoryEncoderDecoder, LowMemorySegTTAModel
from .train.losses import LabelledLovaszLoss

__all__ = ['ImageFolderDataset', 'LabelledLovaszLoss', 'LowMemoryEncoderDecoder', 'LowMemorySegTTAModel']
