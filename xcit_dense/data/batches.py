"""Batches: what is in them, and predictions in which no image changes the result of another."""
from functools import partial

from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import Tensor

from .._utils.text import counted


def files_of(batch) -> list:
    """Return the image files of a batch, as its samples name them."""
    samples = batch.get('data_samples', []) if isinstance(batch, dict) else []
    return [str(getattr(sample, 'img_path', 'unknown')) for sample in samples] or ['unknown']


def described(batch) -> str:
    """Return the number of the images of a batch, their sizes and files."""
    inputs = batch.get('inputs', []) if isinstance(batch, dict) else []
    sizes = ', '.join('x'.join(map(str, image.shape[-2:])) for image in inputs) or 'unknown sizes'
    images = inputs[0] if len(inputs) and inputs[0].ndim == 4 else inputs  # the inputs of `DINO` are batches of views
    return f'{counted(len(images), "images")} ({sizes} pixels; {", ".join(files_of(batch))})'


def unwrapped(model):
    """Return a model without its wrappers for distributed runs and for test-time augmentation."""
    while is_model_wrapper(model) or isinstance(model, BaseTTAModel):
        model = model.module
    return model


def predict_by_size(model):
    """Let the steps of a model for validation and test be those of `step_by_size`, and return the model.

    It may be in a wrapper. Steps that are set on the object itself stay.
    """
    own = unwrapped(model)
    for name in {'val_step', 'test_step'} - vars(own).keys():
        setattr(own, name, partial(step_by_size, getattr(own, name), own))
    return model


def step_by_size(step, model, data) -> list:
    """Predict the images of a batch that differ in size one size after the other.

    So each image gets the result that it gets alone, to float precision. mmdet pads all to the largest, and attention,
    norms and convolutions see the padding; mmseg refuses such a batch.
    """
    results = {}
    for places, part in split_by_size(model, data):
        found = step(part)
        if part is data:
            return found
        results.update(zip(places, found, strict=True))
    return [results[place] for place in range(len(results))]


def split_by_size(model, data) -> list:
    """Return the parts of a batch that have one size after the model's padding, each with the places of its images.

    Anything but lists of images and samples is a single part.
    """
    inputs = data.get('inputs') if isinstance(data, dict) else None
    if not isinstance(inputs, (list, tuple)) or not all(isinstance(image, Tensor) for image in inputs):
        return [(range(len(inputs) if isinstance(inputs, Tensor) else 1), data)]
    multiple = getattr(getattr(unwrapped(model), 'data_preprocessor', None), 'pad_size_divisor', 1)
    groups = {}
    for place, image in enumerate(inputs):
        size = tuple(-(-side // multiple) for side in image.shape[-2:])
        groups.setdefault(size, []).append(place)
    if len(groups) == 1:
        return [(groups.popitem()[1], data)]
    return [(places, {key: [values[place] for place in places] for key, values in data.items()})
            for places in groups.values()]
