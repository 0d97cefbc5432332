"""Does a config fit its data, and what would one that does say?"""
from .looking import Look, look
from .suggesting import suggest

__all__ = ['Look', 'look', 'suggest']
