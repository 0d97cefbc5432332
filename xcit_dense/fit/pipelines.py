"""Pipelines whose images become larger or smaller."""
import copy

from ..data.datasets import dicts_in

#: Arguments of steps that are sizes in pixels, where they are above 1; below they are shares.
_SIZES = ('scale', 'scales', 'img_scale', 'crop_size', 'size')


def scaled_pipeline(pipeline, factor: float) -> list:
    """Return a copy of a pipeline with all sizes in pixels multiplied.

    Args:
        pipeline: The configs of its steps.
        factor: By how much.
    """
    pipeline = copy.deepcopy(list(pipeline))
    for step in dicts_in(pipeline):
        for key in _SIZES:
            if step.get(key) is not None and step.get('type'):
                step[key] = scaled(step[key], factor)
    return pipeline


def scaled(size, factor: float):
    """Return a size, or sizes, in pixels multiplied; multiples of 16 stay such."""
    if isinstance(size, (list, tuple)):
        return type(size)(scaled(part, factor) for part in size)
    if isinstance(size, bool) or not isinstance(size, (int, float)) or size <= 1:
        return size
    unit = 32 if size % 32 == 0 else 16 if size % 16 == 0 else 1
    return max(round(size * factor / unit), 1) * unit
