"""At which resolution a classifier is tested."""
from ..data.datasets import datasets, dicts_in
from ..errors import ConfigError


def set_test_size(cfg, size: int = None, crop_ratio: float = None):
    """Let the test pipeline resize the shorter side of an image to ``size / crop_ratio`` and crop its centre.

    Args:
        cfg: The config of a classifier; its ``test_dataloader`` is changed.
        size: Side of the crop, in pixels; by default that of the config.
        crop_ratio: Share of the shorter side that the crop keeps, above 0 up to 1; by default that of the config.

    Raises:
        ConfigError: A value is out of range, or the pipeline has not these two steps.
    """
    if size is not None and size < 1:
        raise ConfigError(f'--size must be 1 or more pixels, got {size}')
    if crop_ratio is not None and not 0 < crop_ratio <= 1:
        raise ConfigError(f'--crop-ratio must be above 0, up to 1, got {crop_ratio}')
    for dataset in datasets(cfg, ['test_dataloader']):
        resize, crop = size_steps(dataset)
        ratio = crop_ratio or min(crop.crop_size / resize.scale, 1)
        crop.crop_size = size or crop.crop_size
        resize.scale = round(crop.crop_size / ratio)


def size_steps(dataset) -> tuple:
    """Return the step of a pipeline that resizes the shorter side and the one that crops the centre.

    Raises:
        ConfigError: It has not these two.
    """
    steps = {_name(step.get('type')): step for step in dicts_in(dataset.get('pipeline') or ())}
    resize, crop = steps.get('ResizeEdge'), steps.get('CenterCrop')
    if (resize is None or crop is None or resize.get('edge', 'short') != 'short' or not isinstance(crop.crop_size, int)
            or not isinstance(resize.scale, int)):
        raise ConfigError('--size, --crop-ratio and --sizes are for classifiers, whose test pipeline resizes the '
                          "shorter side (ResizeEdge, edge='short') and crops a square (CenterCrop); that of this "
                          f'config has {", ".join(filter(None, steps)) or "no steps"}. The scales of other models '
                          'stand in the test_dataloader of the config')
    return resize, crop


def _name(kind):
    return getattr(kind, '__name__', str(kind or '').rpartition('.')[2])
