"""Data as annotation tools export it: recognises the layout of a folder and points the config to it."""
from .derived import folder_of_training, follow_work_dir
from .recognition import place_data
from .types import DataOptions

__all__ = ['DataOptions', 'folder_of_training', 'follow_work_dir', 'place_data']
