"""Modules that mmseg lacks. Import: ``custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg'])``."""
from mmseg.registry import HOOKS

from .data.image_folders import ImageFolderDataset
from .predict.drawing import DrawingHook
from .predict.low_memory import LowMemoryEncoderDecoder, LowMemorySegTTAModel

__all__ = ['ImageFolderDataset', 'LowMemoryEncoderDecoder', 'LowMemorySegTTAModel', 'SegDrawingHook']

#: The name in older configs.
SegDrawingHook = HOOKS.register_module(name='SegDrawingHook', module=DrawingHook)
