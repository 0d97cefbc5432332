"""The one look of everything that is drawn: colours of classes, names, boxes, masks, label maps."""
from .classes import class_colours
from .pictures import draw_map, draw_objects

__all__ = ['class_colours', 'draw_map', 'draw_objects']
