"""The libraries that teachers are from: a model by its name, and what the library knows of it."""
from typing import NamedTuple

from torch import nn

from .._utils.text import did_you_mean
from ..config.loading import get_config, read_config
from ..config.testing import find_resolution
from ..data.classes import heads_of_classes
from ..data.datasets import LOADERS, datasets
from ..weights.zoo import PREFIX, WEIGHTS, get_weights

_HUB = 'https://huggingface.co/{}/resolve/main/{}'  # where timm keeps its weights


class Known(NamedTuple):
    """What a library knows of a model: ``ClsDataPreprocessor``, side of its images, and weights with their classes."""
    preprocessor: nn.Module
    size: int | None = None
    weights: str | None = None
    num_classes: int | None = None


def _of_timm(name, num_classes):
    """Return a model of timm by its name, such as ``regnety_160.deit_in1k``, and what timm knows of it."""
    import timm
    if not timm.is_model(name):
        raise ValueError(f'timm has no model of this name{did_you_mean(name, timm.list_models())}')
    model = timm.create_model(name, num_classes=num_classes)
    cfg = model.pretrained_cfg
    # first, as in timm: other addresses may have files with other names of tensors
    weights = _HUB.format(cfg['hf_hub_id'], cfg.get('hf_hub_filename') or 'model.safetensors') if cfg.get(
        'hf_hub_id') else cfg.get('url')
    return model, Known(_rgb(cfg['mean'], cfg['std']), cfg['input_size'][-1], weights, cfg['num_classes'])


def _of_torchvision(name, num_classes):
    """Return a model of torchvision by its name, such as ``regnet_y_16gf`` or ``regnet_y_16gf.IMAGENET1K_V1``."""
    from torchvision import models
    name, _, tag = name.partition('.')
    names = models.list_models(models)  # others return boxes or maps, and fetch weights
    if name not in names:
        raise ValueError(f'torchvision has no classifier of this name{did_you_mean(name, names)}')
    published = models.get_model_weights(name)
    if tag and tag not in published.__members__:
        raise ValueError(f'{name} has no weights {tag}, only {", ".join(published.__members__)}')
    weights = published[tag] if tag else published.DEFAULT
    images = weights.transforms()
    return models.get_model(name, weights=None, num_classes=num_classes), Known(
        _rgb(images.mean, images.std), images.crop_size[0], weights.url, len(weights.meta['categories']))


def _of_mmpretrain(name, num_classes):
    """Return a classifier of mmpretrain by its name, such as ``resnet50_8xb32_in1k``, or by a config."""
    from mmpretrain.apis import ModelHub
    if name.endswith('.py'):
        return _of_config(read_config(name), num_classes)
    found = ModelHub.get(name)
    return _of_config(found.config, num_classes, found.weights)


def _of_xcit(name, num_classes):
    """Return an XCiT by the name of its weights, such as ``xcit://small_24_p8_224``, or of its config."""
    short = name.removeprefix(PREFIX)
    if not name.startswith(PREFIX) and short not in WEIGHTS:
        return _of_config(get_config(name, pretrained=False), num_classes)
    cfg = get_config('xcit_s12_p16_imagenet', pretrained=False)  # the others differ only in arch
    cfg.model.backbone.arch = get_weights(name).arch
    model, known = _of_config(cfg, num_classes, PREFIX + short)
    return model, known._replace(size=384 if '_384' in short else known.size, num_classes=1000)


def _of_config(cfg, num_classes, weights=None):
    from mmpretrain.apis import get_model
    from mmpretrain.models import BaseClassifier
    tested = datasets(cfg, LOADERS[2:])
    size = find_resolution(tested[0])[0] if tested else None
    cfg.pop('test_dataloader', None)  # mmpretrain would look for classes in it
    backbone = cfg.model.get('backbone') or {}
    for part in (*heads_of_classes(cfg.model), *[backbone] * (backbone.get('num_classes', 0) > 0)):  # VGG's has classes
        part['num_classes'] = num_classes
    model = get_model(cfg)
    if not isinstance(model, BaseClassifier):
        raise ValueError('it is not a classifier. Name one, as it gives the student scores of classes')
    return model, Known(model.data_preprocessor, size, weights)


def _rgb(mean, std):
    """Return a preprocessor for a mean and a standard deviation of red, green and blue from 0 to 1."""
    from mmpretrain.models import ClsDataPreprocessor
    return ClsDataPreprocessor(*([255 * value for value in values] for values in (mean, std)), to_rgb=True)


#: Where teachers are from: functions from a name and a number of classes to a model, and what is known of it.
LIBRARIES = dict(timm=_of_timm, torchvision=_of_torchvision, mmpretrain=_of_mmpretrain, xcit_dense=_of_xcit)
