"""Predictions: for image files, next to the ground truth, and of large images in little memory."""
from .classifying import classify

__all__ = ['classify']
