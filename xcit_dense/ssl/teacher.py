"""The teacher of a distillation: its options, its weights, and the images that it sees."""
import hashlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from .._utils.text import counted, did_you_mean, first_line, type_name
from ..config.image_size import test_size_of
from ..data.class_folders import same_classes
from ..data.classes import classes_of_data, difference_of, known_classes, outputs_of
from ..data.datasets import LOADERS, datasets
from ..errors import CheckpointError, ConfigError, DataError, SetupError
from ..weights import fetch, load_model, read_checkpoint
from ..weights.contents import config_of_checkpoint
from .libraries import LIBRARIES


class Teacher(nn.Module):
    """A classifier that takes images normalised for the student.

    Args:
        model: The classifier, from images to logits.
        wanted, given: The ``ClsDataPreprocessor`` of the model, and that of the student.
        size: Side of the images of the model, to which other ones are resized; None for none.

    `ConfigError` if the images of the student have other channels.
    """

    def __init__(self, model: nn.Module, wanted, given, num_classes: int, size: int = None):
        super().__init__()
        self.model, self.num_classes, self.size, self._is_set = model, num_classes, size, False
        mean, std = _mean_and_std(wanted)
        self._flips = wanted.to_rgb != given.to_rgb
        ours, scale = (values.flip(0) if self._flips else values for values in _mean_and_std(given))
        if len(ours) != len(mean) and _normalises(given) and _normalises(wanted):
            raise ConfigError(f'model.teacher: the images of the student have {counted(len(ours), "channels")}, those '
                              f'of the teacher {len(mean)}')
        self.register_buffer('scale', scale / std, persistent=False)
        self.register_buffer('shift', (ours - mean) / std, persistent=False)

    def set_size(self, size: int | None):
        """Set the side of the images, unless it is None or was set before."""
        if size and not self._is_set:
            self.size, self._is_set = size, True

    def forward(self, images):
        """Return logits (B, classes) of images (B, channels, H, W)."""
        flips = self._flips and images.shape[1] == 3
        images = (images.flip(1) if flips else images) * self.scale + self.shift
        if self.size and images.shape[-2:] != (self.size, self.size):
            images = F.interpolate(images, (self.size, self.size), mode='bicubic', antialias=True)
        return self.model(images)

    @property
    def digest(self) -> str:
        """SHA-256 of names and values of the model."""
        found = hashlib.sha256()
        for name, value in self.model.state_dict().items():
            found.update(name.encode())
            found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
        return found.hexdigest()


def _mean_and_std(preprocessor):
    """Return mean and std of a ``ClsDataPreprocessor`` (0 to 255), each (channels, 1, 1); (1, 1, 1) if it has none."""
    if _normalises(preprocessor):
        return preprocessor.mean, preprocessor.std
    return torch.zeros(1, 1, 1), torch.ones(1, 1, 1)


def _normalises(preprocessor):
    return getattr(preprocessor, 'mean', None) is not None


@dataclass(frozen=True)
class TeacherOptions:
    """``model.teacher`` of a config.

    Args:
        library: timm, torchvision, mmpretrain or xcit_dense.
        name: Name of a model there; for mmpretrain and xcit_dense also of a config; for xcit_dense also of published
            weights, ``xcit://NAME``.
        checkpoint: Its weights, as for `xcit_dense.weights.read_checkpoint`. By default the weights that the library
            publishes for the name; for configs there are none.
        image_size: Side of its images in pixels, to which those of the student are resized. By default the size of the
            training that wrote the checkpoint, or else the one that the library names for the model.

    Raises:
        ValueError: There is no such library, or the size is below 1.
    """
    library: str
    name: str
    checkpoint: str | None = None
    image_size: int | None = None

    def __post_init__(self):
        if self.library not in LIBRARIES:
            raise ValueError(f'teacher.library must be {", ".join(LIBRARIES)}, got {self.library!r}'
                             + did_you_mean(self.library, LIBRARIES))
        if self.image_size is not None and not (isinstance(self.image_size, int) and self.image_size > 0):
            raise ValueError(f'teacher.image_size must be 1 or more pixels, got {self.image_size!r}')

    def build(self, num_classes: int, student):
        """Return a `Teacher` without its weights, and where these are.

        `ConfigError` if there is no such classifier, or nothing says where its weights are; `SetupError` if the library
        is not installed.
        """
        try:
            model, known = LIBRARIES[self.library](self.name, num_classes)
        except ImportError as error:
            raise SetupError(f'model.teacher: {self} needs {self.library}, which cannot be imported ({error}): pip '
                             f'install {self.library}') from error
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:  # of the libraries
            raise ConfigError(f'model.teacher.name: {self} cannot be built: {error}') from error
        source, classes = self.checkpoint or known.weights, known.num_classes or num_classes
        if not source or not self.checkpoint and classes != num_classes:
            raise ConfigError(f'model.teacher.checkpoint is missing: give the file of the weights of {self}' + (
                f'; those that {self.library} publishes are for {classes:,} classes, the student has {num_classes:,}'
                if source else ''))
        teacher = Teacher(model, known.preprocessor, student, num_classes, known.size)
        teacher.set_size(self.image_size)
        return teacher, str(source)

    def __str__(self):
        return f'{self.name} of {self.library}'


def check_teacher(cfg, resumed: dict | None = None):
    """Check that a training can have its teacher, before anything that takes long; other configs are left alone.

    The teacher's file is fetched now, as a download may fail, and loaded once for the classes of the student. Errors
    are those of `TeacherOptions.build` and `load_teacher`; or `DataError`, if the classes of the data cannot be read.
    """
    model = cfg.get('model') or {}
    if type_name(model.get('type')) != 'DistilledClassifier':
        return
    from mmpretrain.registry import MODELS
    options = TeacherOptions(**model['teacher'])
    student = MODELS.build(dict(type='ClsDataPreprocessor') | (cfg.get('data_preprocessor') or {})
                           | (model.get('data_preprocessor') or {}))
    classes = classes_of_data(datasets(cfg, LOADERS[:1])[0])['classes'] if cfg.get('classes_from_data') else ()
    teacher, source = options.build(len(classes) or outputs_of(model) or 1000, student)
    if 'teacher' not in (resumed or {}):
        load_teacher(teacher, source, classes, (resumed or {}).get('teacher_digest'))


def load_teacher(teacher: Teacher, source, classes=(), digest: str = None):
    """Load the weights of a teacher strictly from its file, try it on an image, and return the path of the file.

    ``classes`` are those of the student, if known, and ``digest`` is of the teacher that a resumed run began with.
    `CheckpointError` if the file is missing, does not fit the model, such as that of a teacher with more classes, or is
    not that of the resumed run; `ConfigError` if the model cannot take images of its size; `DataError` if the file is
    of a teacher with other classes.
    """
    try:
        path = fetch(str(source))
    except CheckpointError as error:
        raise CheckpointError(f'model.teacher.checkpoint: {error}') from error
    checkpoint = read_checkpoint(path)
    names = known_classes(checkpoint, path)
    if names and classes and not same_classes(names, classes):
        difference = difference_of(names, tuple(classes))
        raise DataError(f'model.teacher.checkpoint: {path} has other classes than the training data, or in '
                        f'another order: {difference}. Use a teacher of the same classes in the same order')
    try:
        load_model(teacher.model, checkpoint, path)
    except CheckpointError as error:
        words = f'. The teacher needs the {teacher.num_classes:,} classes of the student'
        raise CheckpointError(f'model.teacher.checkpoint: {error}' + words * ('of another shape' in str(error))
                              ) from error
    teacher.set_size((test_size_of(config_of_checkpoint(checkpoint)) or [None])[0])
    if digest not in (None, teacher.digest):
        raise CheckpointError(f'model.teacher.checkpoint: {path} is not the teacher that the resumed run began with. '
                              'Give that file again, or start a new run without --resume; with --save-teacher a run '
                              'keeps its teacher')
    if teacher.size and len(teacher.scale) > 1:  # with 1, the channels are not known
        try:
            with torch.no_grad():
                teacher.eval()(torch.zeros(1, len(teacher.scale), teacher.size, teacher.size))
        except (AssertionError, RuntimeError, ValueError) as error:  # of the libraries, such as models of a fixed size
            raise ConfigError(f'model.teacher: it fails on an image of {teacher.size} pixels '
                              f'(model.teacher.image_size): {first_line(error)}') from error
    return path
