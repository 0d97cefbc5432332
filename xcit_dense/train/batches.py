"""Batches of which no image changes the result of another: validation, tests and predictions."""
from functools import partial

from torch import Tensor

from .sharding import is_sharded, unwrapped


def predict_by_size(model):
    """Let a model predict the images of a batch that differ in size one size after the other; return the model.

    So each image gets the result that it gets alone, to float precision. mmdet pads all to the largest, and attention,
    norms and convolutions see the padding; mmseg refuses such a batch.

    Args:
        model: A model of mmengine, also in a wrapper. Its own ``val_step`` and ``test_step`` are replaced, not those of
            its class.
    """
    own = model if is_sharded(model) else unwrapped(model)
    for name in ('val_step', 'test_step'):
        setattr(own, name, partial(_step, own, name))
    return model


def _step(model, name, data):
    results = {}
    for places, part in split_by_size(model, data):
        found = getattr(type(model), name)(model, part)
        if part is data:
            return found
        results.update(zip(places, found, strict=True))
    return [results[place] for place in range(len(results))]


def split_by_size(model, data) -> list:
    """Return the parts of a batch that have one size after the model's padding, each with the places of its images.

    The images of a sharded model come one by one: its processes need the same number of parts.

    Args:
        model: The model.
        data: What its data preprocessor accepts. Anything but lists of images and samples is a single part.
    """
    inputs = data.get('inputs') if isinstance(data, dict) else None
    if not isinstance(inputs, (list, tuple)) or not all(isinstance(image, Tensor) for image in inputs):
        return [(range(len(inputs) if isinstance(inputs, Tensor) else 1), data)]
    multiple = getattr(getattr(unwrapped(model), 'data_preprocessor', None), 'pad_size_divisor', 1)
    groups = {}
    for place, image in enumerate(inputs):
        size = place if is_sharded(model) else tuple(-(-side // multiple) for side in image.shape[-2:])
        groups.setdefault(size, []).append(place)
    if len(groups) == 1:
        return [(groups.popitem()[1], data)]
    return [(places, {key: [values[place] for place in places] for key, values in data.items()})
            for places in groups.values()]
