"""What mmseg lacks, registered there: ``custom_imports = dict(imports=['xcit_dense', 'xcit_dense.for_mmseg'])``."""
from .data.image_folders import ImageFolderDataset
from .predict.drawing_hook import SegDrawingHook
from .predict.low_memory import LowMemoryEncoderDecoder

__all__ = ['ImageFolderDataset', 'LowMemoryEncoderDecoder', 'SegDrawingHook']
