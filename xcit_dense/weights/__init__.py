"""Weight files: fetch them, read them safely, recognise their layout, load them strictly."""
from .containers import find_state_dict
from .fetching import fetch
from .load import load_backbone, load_classifier, load_model
from .meta import classes_of_checkpoint
from .read import read_checkpoint
from .work_dirs import newest_checkpoint

__all__ = [
    'classes_of_checkpoint', 'fetch', 'find_state_dict', 'load_backbone', 'load_classifier', 'load_model',
    'newest_checkpoint', 'read_checkpoint'
]
