"""The teacher of a distillation: which model of which library, its weights, and the images that it sees."""
import copy
from dataclasses import dataclass
from math import isclose
from typing import NamedTuple

import torch
from mmengine.registry import MODELS, DefaultScope
from torch import nn

from .._utils.text import counted, did_you_mean, type_name
from ..config.loading import get_config, read_config
from ..data.classes import difference_of, heads_of_classes, known_classes
from ..data.imagenet import same_classes
from ..errors import CheckpointError, ConfigError, DataError, SetupError
from ..weights import fetch, load_model, read_checkpoint


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


def _of_timm(name):
    """Return a builder of a model of timm by its name, such as ``regnety_160``; it names no file of weights."""
    try:
        import timm
    except ImportError as error:
        raise SetupError('a teacher of timm (model.teacher.library) needs timm: pip install timm') from error
    known = [*timm.list_models(), *timm.list_models(pretrained=True)]
    if name not in known and ('.' in name or not timm.is_model(name)):  # old names are not listed
        raise _unknown(name, 'timm', known)

    def build(num_classes):
        model = timm.create_model(name, num_classes=num_classes)
        mean, std = (tuple(value * 255 for value in model.pretrained_cfg[key]) for key in ('mean', 'std'))
        return model, Normalisation(mean, std, rgb=True)

    return build, None


def _of_mmpretrain(name):
    """Return a builder of a classifier by its name, such as ``resnet50_8xb32_in1k``, or its config; and its weights."""
    from mmpretrain.apis import ModelHub, list_models
    if str(name).endswith('.py'):
        return _builder(name, read_config(name), 'mmpretrain'), None
    if name not in (known := list_models()):
        raise _unknown(name, 'mmpretrain', known)
    found = ModelHub.get(name)
    return _builder(name, found.config, 'mmpretrain'), found.weights


def _of_this_package(name):
    """Return a builder of a classifier by the name or path of its config, such as ``xcit_m24_p16_custom``."""
    try:
        return _builder(name, get_config(name, pretrained=False), 'xcit_dense'), None
    except ConfigError as error:
        raise ConfigError(f'model.teacher.name: {error}') from error


def _builder(name, cfg, library):
    """Return a builder of a config of mmpretrain."""
    wrong = ConfigError(f'{name} of {library} is not a classifier. Name one, as it gives the student scores of classes')
    options = copy.deepcopy(cfg.get('model'))
    if not options or cfg.get('default_scope', 'mmpretrain') != 'mmpretrain':
        raise wrong
    options.setdefault('data_preprocessor', cfg.get('data_preprocessor'))

    def build(num_classes):
        from mmpretrain.models import BaseClassifier
        for head in heads_of_classes(options):
            head['num_classes'] = num_classes
        with DefaultScope.overwrite_default_scope('mmpretrain'):
            model = MODELS.build(options)
        if not isinstance(model, BaseClassifier):
            raise wrong
        return model, Normalisation.of(model.data_preprocessor)

    return build


#: By their names in a config.
LIBRARIES = dict(timm=_of_timm, mmpretrain=_of_mmpretrain, xcit_dense=_of_this_package)


def _unknown(name, library, known):
    return ConfigError(f'model.teacher.name: {library} has no model {name!r}{did_you_mean(name, known, 3)}')


class Teacher(nn.Module):
    """A classifier that takes images normalised for the student.

    Args:
        model: The classifier, from images to logits.
        wanted: The `Normalisation` that the model was trained with.
        given: That of the student.

    Raises:
        ConfigError: The two have different numbers of channels.
    """

    def __init__(self, model: nn.Module, wanted: Normalisation, given: Normalisation):
        super().__init__()
        if len(wanted.mean) != len(given.mean):
            raise ConfigError(f'model.teacher takes images of {counted(len(wanted.mean), "channels")}, but the student '
                              f'has {counted(len(given.mean), "channels")} (model.data_preprocessor.mean)')
        self.model = model
        self._flips = wanted.rgb != given.rgb and len(wanted.mean) == 3
        mean, std = (values[::-1] if self._flips else values for values in (given.mean, given.std))
        scale = [ours / theirs for ours, theirs in zip(std, wanted.std, strict=True)]
        shift = [(ours - theirs) / s for ours, theirs, s in zip(mean, wanted.mean, wanted.std, strict=True)]
        # the same figures may differ by rounding: some are written for values up to 255, some for up to 1
        self._converts = not all(isclose(a, 1, rel_tol=1e-5) and abs(b) < 1e-5
                                 for a, b in zip(scale, shift, strict=True))
        for name, values in dict(scale=scale, shift=shift).items():
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)

    def forward(self, images):
        """Return logits (B, classes) of images (B, channels, H, W)."""
        if self._flips:
            images = images.flip(1)
        return self.model(images * self.scale + self.shift if self._converts else images)


@dataclass(frozen=True)
class TeacherOptions:
    """``model.teacher`` of a config.

    Args:
        library: timm, mmpretrain or xcit_dense.
        name: Name of a model there; for mmpretrain and xcit_dense also the path of a config.
        checkpoint: File of its weights, as for `xcit_dense.weights.read_checkpoint`. Only for a name of mmpretrain is
            there a default, the file that mmpretrain publishes.

    Raises:
        ValueError: There is no such library.
    """
    library: str
    name: str
    checkpoint: str | None = None

    def __post_init__(self):
        if self.library not in LIBRARIES:
            raise ValueError(f'teacher.library must be {", ".join(LIBRARIES)}, got {self.library!r}'
                             + did_you_mean(self.library, LIBRARIES))

    def find(self):
        """Find the model in its library, which must be installed.

        Returns:
            A function of the number of classes that builds the model, from images to logits, and its `Normalisation`;
            and the address of its weights, where the library names one.

        Raises:
            ConfigError: There is no such model.
            SetupError: The library is not installed.
        """
        return LIBRARIES[self.library](self.name)

    def fetch(self):
        """Return the local path of the weights; an address is downloaded first.

        Raises:
            CheckpointError: There is no such file, or it cannot be fetched.
            ConfigError: It is not known which file.
        """
        source = self.checkpoint or self.find()[1]
        if not source:
            raise ConfigError(f'model.teacher.checkpoint is missing: give the file of the weights of {self}')
        try:
            return fetch(str(source))
        except CheckpointError as error:
            raise CheckpointError(f'model.teacher.checkpoint: {error}') from error

    def __str__(self):
        return f'{self.name} of {self.library}'


def check_teacher(cfg, resumed: bool = False):
    """Check that a training can have its teacher, before anything that takes long; other configs are left alone.

    The teacher's file is fetched now, as a download may fail.

    Args:
        cfg: The config.
        resumed: Whether the teacher comes from a checkpoint of the run.

    Raises:
        CheckpointError: There is no such file.
        ConfigError: The config names no model that exists.
        SetupError: The library of the teacher is not installed.
    """
    model = cfg.get('model') or {}
    if type_name(model.get('type')) == 'DistilledClassifier':
        options = TeacherOptions(**model['teacher'])
        options.find()
        if not resumed:
            options.fetch()


def build_teacher(options: TeacherOptions, num_classes: int, preprocessor) -> Teacher:
    """Build a teacher without its weights, for the classes and the ``ClsDataPreprocessor`` of a student.

    Raises:
        ConfigError: There is no such classifier, or it takes images of another number of channels.
        SetupError: Its library is not installed.
    """
    model, normalisation = options.find()[0](num_classes)
    return Teacher(model, normalisation, Normalisation.of(preprocessor))


def load_teacher(teacher: Teacher, path, classes=()):
    """Load the weights of a teacher strictly from its file.

    Args:
        teacher: The teacher, built for the classes of the student.
        path: The file.
        classes: The names of these classes, if known.

    Raises:
        CheckpointError: The file does not fit the model, such as that of a teacher with more classes.
        DataError: The file is of a teacher with other classes.
    """
    checkpoint = read_checkpoint(path)
    names = known_classes(checkpoint, path)
    if names and classes and not same_classes(names, classes):
        difference = difference_of(names, tuple(classes))
        raise DataError(f'model.teacher.checkpoint: {path} has other classes than the training data, or in '
                        f'another order: {difference}. Use a teacher of the same classes in the same order')
    try:
        load_model(teacher.model, checkpoint, path)
    except CheckpointError as error:
        raise CheckpointError(f'model.teacher.checkpoint: {error}') from error
