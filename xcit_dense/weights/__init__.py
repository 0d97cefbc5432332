"""Weight files: fetch them, read them safely, recognise their layout, load them strictly."""
from .contents import classes_of_checkpoint, find_state_dict
from .files import best_checkpoint, newest_checkpoint
from .load import load_backbone, load_classifier, load_model
from .read import read_checkpoint
from .zoo import fetch

__all__ = ['best_checkpoint', 'classes_of_checkpoint', 'fetch', 'find_state_dict', 'load_backbone', 'load_classifier',
           'load_model', 'newest_checkpoint', 'read_checkpoint']
