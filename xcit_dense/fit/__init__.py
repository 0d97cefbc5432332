"""Does a config fit its data, and what would one that does say?"""
from .looking import Look, look
from .suggesting import check_kind, suggest

__all__ = ['Look', 'check_kind', 'look', 'suggest']
