"""Schedules of DINO as functions of the progress, so that a resumed run continues them exactly."""
import math


def cosine(start: float, end: float, step: int, steps: int) -> float:
    """Return the value at ``step`` (from 0) of a half cosine wave from ``start`` towards ``end`` in ``steps``."""
    return end + (start - end) * (1 + math.cos(math.pi * step / steps)) / 2


def linear(start: float, end: float, step: int, steps: int) -> float:
    """Return the value at ``step`` (from 0) of a line that reaches ``end`` at the last of ``steps`` and stays there."""
    if step >= steps:
        return end
    return start + (end - start) * step / max(steps - 1, 1)
