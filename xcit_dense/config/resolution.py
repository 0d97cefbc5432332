"""The resolution at which a classifier is tested."""
from ..data.datasets import LOADERS, datasets, dicts_in
from ..errors import ConfigError
from ..text import type_name

#: Keys of steps for classifiers that hold pixels.
_SIDES = ('scale', 'crop_size')


def set_test_size(cfg, size: int = None, crop_ratio: float = None):
    """Make the test pipeline resize the shorter side of an image to ``size / crop_ratio`` and crop the centre.

    Args:
        cfg: The config of a classifier; its ``test_dataloader`` is changed.
        size: As for `find_resolution`.
        crop_ratio: As for `find_resolution`.

    Raises:
        ConfigError: A value is out of range, or the pipeline does not have these two steps.
    """
    for dataset in datasets(cfg, ['test_dataloader']):
        side, ratio = find_resolution(dataset, size, crop_ratio)
        resize, crop = _steps(dataset)
        if not _tells(resize, crop):
            raise ConfigError('--size, --crop-ratio and --sizes are for classifiers, whose test pipeline resizes the '
                              "shorter side (ResizeEdge, edge='short') and crops a square (CenterCrop); this config "
                              f'has {_titles(dataset)}. For other models set the scales in the test_dataloader of '
                              'the config')
        crop['crop_size'] = side
        resize['scale'] = round(side / ratio)


def find_resolution(dataset=None, size: int = None, crop_ratio: float = None) -> tuple:
    """Return the side of the crop in pixels, and the share of the shorter side that it keeps.

    Args:
        dataset: The config of a data set, whose pipeline gives the values that are omitted.
        size: The side; by default that of the pipeline, or None if the pipeline does not have the two steps.
        crop_ratio: The share, above 0 and at most 1; by default that of the pipeline, or 1 if it has none.

    Raises:
        ConfigError: A value is out of range.
    """
    if size is not None and size < 1:
        raise ConfigError(f'--size must be 1 or more pixels, got {size}')
    if crop_ratio is not None and not 0 < crop_ratio <= 1:
        raise ConfigError(f'--crop-ratio must be above 0 and at most 1, got {crop_ratio}')
    resize, crop = _steps(dataset or {})
    if not _tells(resize, crop):
        return size, crop_ratio or 1.
    side = _side(crop.get('crop_size'))
    return size or side, crop_ratio or min(side / resize['scale'], 1.)


def scale_sides(cfg, size: int, loaders) -> bool:
    """Scale all sides in the pipelines of a classifier so that the crop of its test gets a new size.

    Args:
        cfg: The config; its pipelines are changed.
        size: The side of the crop in pixels.
        loaders: The loaders whose pipelines are changed.

    Returns:
        Whether the config shows how large the crops are.
    """
    before = next((side for name in reversed(LOADERS) for dataset in _datasets(cfg, [name])
                   for side in [find_resolution(dataset)[0] or _last_side(dataset)] if side), None)

    def scaled(value):
        if isinstance(value, (list, tuple)):
            return type(value)(map(scaled, value))
        return round(value * size / before) if _is_side(value) else value

    for dataset in _datasets(cfg, loaders) if before else ():
        # loaders may share a pipeline
        dataset['pipeline'] = [{key: scaled(value) if key in _SIDES else value for key, value in step.items()}
                               for step in dataset.get('pipeline') or ()]
    return before is not None


def _datasets(cfg, loaders):
    return datasets(cfg, [name for name in loaders if cfg.get(name)])


def _last_side(dataset):
    """Return the last side that a pipeline resizes or crops to."""
    sides = [_side(step.get(key)) for step in dicts_in(dataset.get('pipeline') or ()) for key in _SIDES]
    return next(filter(None, reversed(sides)), None)


def _steps(dataset):
    """Return the steps of a pipeline that resize the shorter side and crop the centre; empty dicts for missing ones."""
    steps = {type_name(step.get('type')): step for step in dicts_in(dataset.get('pipeline') or ())}
    return steps.get('ResizeEdge') or {}, steps.get('CenterCrop') or {}


def _tells(resize, crop):
    return resize.get('edge', 'short') == 'short' and _is_side(resize.get('scale')) and bool(
        _side(crop.get('crop_size')))


def _side(value):
    """Return the pixels of a length, or of a pair of two that are equal; None for anything else."""
    if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    return value if _is_side(value) else None


def _is_side(value):
    return isinstance(value, int) and value > 0


def _titles(dataset):
    """Return the steps of a pipeline as text; those that matter here with their arguments."""
    found = []
    for step in dicts_in(dataset.get('pipeline') or ()):
        sizes = [f'{key}={step[key]!r}' for key in ('scale', 'edge', 'crop_size') if key in step]
        if name := type_name(step.get('type')):
            found.append(f'{name}({", ".join(sizes)})' if sizes and name in ('ResizeEdge', 'CenterCrop') else name)
    return ', '.join(found) or 'no steps'
