"""Check whether a config fits its data, and suggest one that does."""
from .looking import Look, look
from .suggesting import check_kind, suggest

__all__ = ['Look', 'check_kind', 'look', 'suggest']
