"""Data as annotation tools leave it: what lies in a folder is recognised, and the config is pointed to it."""
from .options import DataOptions
from .placing import place_data
from .writing import folder_of_training

__all__ = ['DataOptions', 'folder_of_training', 'place_data']
