"""Data as annotation tools export it: recognises the layout of a folder and points the config to it."""
from .options import DataOptions
from .placing import place_data
from .writing import folder_of_training

__all__ = ['DataOptions', 'folder_of_training', 'place_data']
