"""Data as annotation tools export it: recognises the layout of a folder and points the config to it."""
from .derived import folder_of_training
from .recognition import place_data
from .types import DataOptions

__all__ = ['DataOptions', 'folder_of_training', 'place_data']
