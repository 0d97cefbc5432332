"""The one look of everything that is drawn: colours of classes, names, boxes, masks, label maps, plots."""
from .colours import class_colours
from .maps import draw_map
from .objects import draw_objects

__all__ = ['class_colours', 'draw_map', 'draw_objects']
