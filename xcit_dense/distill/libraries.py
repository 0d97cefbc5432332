"""The libraries that teachers come from: timm, mmpretrain and this package."""
import copy
from typing import NamedTuple

from mmengine.registry import MODELS, DefaultScope
from mmpretrain.apis import ModelHub, list_models
from mmpretrain.models import BaseClassifier

from ..config.loading import get_config, read_config
from ..data.classes import heads_of_classes
from ..errors import ConfigError, SetupError
from ..text import did_you_mean


class Normalisation(NamedTuple):
    """How a model wants its images.

    Args:
        mean: Per channel, of values from 0 to 255.
        std: Standard deviation per channel, in the same way.
        rgb: Whether the first channel is red; otherwise it is blue.
    """
    mean: tuple
    std: tuple
    rgb: bool

    @classmethod
    def of(cls, preprocessor):
        """Return what a ``ClsDataPreprocessor`` of mmpretrain does."""
        mean, std = (getattr(preprocessor, name, None) for name in ('mean', 'std'))
        if mean is None:
            return cls((0., 0., 0.), (1., 1., 1.), preprocessor.to_rgb)
        return cls(tuple(mean.flatten().tolist()), tuple(std.flatten().tolist()), preprocessor.to_rgb)


class Timm:
    """A model of timm by its name, such as ``regnety_160``."""

    def __init__(self, name):
        try:
            import timm
        except ImportError as error:
            raise SetupError('a teacher of timm (model.teacher.library) needs timm: pip install timm') from error
        self._library, self._name = timm, name
        known = timm.list_models()
        if not timm.is_model(name):
            raise _unknown(name, 'timm', known)
        if '.' in name and name not in (tagged := timm.list_models(f'{name.partition(".")[0]}.*', pretrained=True)):
            raise _unknown(name, 'timm', [*tagged, *known])

    #: Address of the weights, where the library names one.
    weights = None

    def build(self, num_classes: int):
        """Return a new model, from images to logits, and its `Normalisation`."""
        model = self._library.create_model(self._name, num_classes=num_classes)
        mean, std = (tuple(value * 255 for value in model.pretrained_cfg[key]) for key in ('mean', 'std'))
        return model, Normalisation(mean, std, rgb=True)


class _Classifier:
    """A classifier of mmpretrain by its config."""

    def __init__(self, name, cfg, library):
        self._model, self._title = copy.deepcopy(cfg.get('model')), f'{name} of {library}'
        if not self._model or cfg.get('default_scope', 'mmpretrain') != 'mmpretrain':
            raise self._no_classifier()
        self._model.setdefault('data_preprocessor', cfg.get('data_preprocessor'))

    def build(self, num_classes: int):
        """Return a new model, from images to logits, and its `Normalisation`."""
        for head in heads_of_classes(self._model):
            head['num_classes'] = num_classes
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            model = MODELS.build(self._model)
        if not isinstance(model, BaseClassifier):
            raise self._no_classifier()
        return model, Normalisation.of(model.data_preprocessor)

    def _no_classifier(self):
        return ConfigError(f'model.teacher.name = {self._title} is not a classifier. Name one, as it gives the student '
                           'scores of classes')


class MMPretrain(_Classifier):
    """A classifier of mmpretrain by its name, such as ``resnet50_8xb32_in1k``, or by the path of a config."""

    def __init__(self, name):
        if str(name).endswith('.py'):
            cfg, self.weights = read_config(name), None
        elif name in (known := list_models()):
            found = ModelHub.get(name)
            cfg, self.weights = found.config, found.weights
        else:
            raise _unknown(name, 'mmpretrain', known)
        super().__init__(name, cfg, 'mmpretrain')


class Own(_Classifier):
    """A classifier of this package by the name or path of its config, such as ``xcit_m24_p16_custom``."""

    weights = None

    def __init__(self, name):
        try:
            cfg = get_config(name, pretrained=False)
        except ConfigError as error:
            raise ConfigError(f'model.teacher.name: {error}') from error
        super().__init__(name, cfg, 'xcit_dense')


#: By their names in a config.
LIBRARIES = dict(timm=Timm, mmpretrain=MMPretrain, xcit_dense=Own)


def _unknown(name, library, known):
    return ConfigError(f'model.teacher.name: {library} has no model {name!r}{did_you_mean(name, known, 3)}')
