"""The teacher of a distillation: which model of which library, its weights, and the images that it sees."""
from dataclasses import dataclass

import torch
from torch import nn

from .._utils.text import did_you_mean, type_name
from ..config.loading import get_config, read_config
from ..data.class_folders import same_classes
from ..data.classes import difference_of, heads_of_classes, known_classes
from ..errors import ConfigError, DataError, SetupError
from ..weights import fetch, load_model, read_checkpoint

LIBRARIES = ('timm', 'mmpretrain', 'xcit_dense')


def _mean_and_std(preprocessor):
    """Return what a ``ClsDataPreprocessor`` normalises with, for values from 0 to 255: two tensors (channels, 1, 1)."""
    if getattr(preprocessor, 'mean', None) is None:
        return torch.zeros(3, 1, 1), torch.ones(3, 1, 1)
    return preprocessor.mean, preprocessor.std


def _of_timm(name, num_classes):
    """Return a model of timm by its name, such as ``regnety_160``, and a preprocessor for it."""
    from mmpretrain.models import ClsDataPreprocessor
    try:
        import timm
    except ImportError as error:
        raise SetupError('a teacher of timm (model.teacher.library) needs timm: pip install timm') from error
    model = timm.create_model(name, num_classes=num_classes)
    mean, std = ([255 * value for value in model.pretrained_cfg[key]] for key in ('mean', 'std'))
    return model, ClsDataPreprocessor(mean, std, to_rgb=True)


def _of_config(library, name, num_classes):
    """Return a classifier of another library by its name, such as ``resnet50_8xb32_in1k``, or config; as `_of_timm`."""
    from mmpretrain.apis import ModelHub, get_model
    from mmpretrain.models import BaseClassifier
    if library == 'xcit_dense':
        cfg = get_config(name, pretrained=False)
    else:
        cfg = read_config(name) if name.endswith('.py') else ModelHub.get(name).config
    cfg.pop('test_dataloader', None)  # mmpretrain would look for classes in it
    for head in heads_of_classes(cfg.model):
        head['num_classes'] = num_classes
    model = get_model(cfg)
    if not isinstance(model, BaseClassifier):
        raise ConfigError('it is not a classifier. Name one, as it gives the student scores of classes')
    return model, model.data_preprocessor


class Teacher(nn.Module):
    """A classifier that takes images normalised for the student.

    Args:
        model: The classifier, from images to logits.
        wanted: A ``ClsDataPreprocessor`` of mmpretrain that normalises as in the training of the model.
        given: That of the student.
    """

    def __init__(self, model: nn.Module, wanted, given):
        super().__init__()
        self.model = model
        mean, std = _mean_and_std(wanted)
        self._flips = wanted.to_rgb != given.to_rgb and len(mean) == 3
        ours, scale = (values.flip(0) if self._flips else values for values in _mean_and_std(given))
        self.register_buffer('scale', scale / std, persistent=False)
        self.register_buffer('shift', (ours - mean) / std, persistent=False)

    def forward(self, images):
        """Return logits (B, classes) of images (B, channels, H, W)."""
        return self.model((images.flip(1) if self._flips else images) * self.scale + self.shift)


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

    def build(self, num_classes: int):
        """Return the model without its weights, from images to logits of some classes, and its preprocessor.

        Raises:
            ConfigError: There is no such classifier.
            SetupError: The library is not installed.
        """
        try:
            return (_of_timm(self.name, num_classes) if self.library == 'timm' else
                    _of_config(self.library, self.name, num_classes))
        except SetupError:
            raise
        except (KeyError, RuntimeError, ValueError) as error:  # of the libraries
            raise ConfigError(f'model.teacher.name: {self} cannot be built: {error}') from error

    def fetch(self):
        """Return the local path of the weights; an address is downloaded first.

        Raises:
            CheckpointError: There is no such file, or it cannot be fetched.
            ConfigError: It is not known which file.
        """
        source = self.checkpoint
        if not source and self.library == 'mmpretrain' and not self.name.endswith('.py'):
            from mmpretrain.apis import ModelHub
            source = ModelHub.get(self.name).weights
        if not source:
            raise ConfigError(f'model.teacher.checkpoint is missing: give the file of the weights of {self}')
        return fetch(str(source))

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
        options.build(1000)
        if not resumed:
            options.fetch()


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
    load_model(teacher.model, checkpoint, path)
