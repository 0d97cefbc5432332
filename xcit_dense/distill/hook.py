"""The hook that gives a `DistilledClassifier` its teacher, and keeps it in checkpoints."""
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ..compat.mmengine_private import is_resumed
from ..errors import ConfigError
from ..text import counted
from ..train.randomness import isolated_random_state
from ..train.sharding import unwrapped
from ..weights import load_model
from .classifier import DistilledClassifier
from .teacher import build_teacher, load_teacher


@HOOKS.register_module()
class TeacherHook(Hook):
    """Builds the teacher of a `DistilledClassifier` for a training: ``custom_hooks=[dict(type='TeacherHook')]``.

    Checkpoints hold the teacher under ``teacher``, next to the student (``state_dict``): a resumed run needs no other
    file and continues with the same teacher.
    """

    priority = 'HIGHEST'  # before hooks that compute losses when a training starts

    def __init__(self):
        self._resumed = None

    def after_load_checkpoint(self, runner, checkpoint):
        """Keep the teacher of the resumed run."""
        self._resumed = checkpoint.get('teacher') if is_resumed(runner) else None

    def before_train(self, runner):
        """Build the teacher and load its weights: those of the resumed run, or else those of its file.

        Raises:
            CheckpointError: The file is missing or does not fit the model.
            ConfigError: The model is not a `DistilledClassifier`, or names no teacher that exists.
            DataError: The teacher has other classes.
            SetupError: The library of the teacher is not installed.
        """
        model = unwrapped(runner.model)
        if not isinstance(model, DistilledClassifier):
            raise ConfigError(f'TeacherHook is for a DistilledClassifier, but this model is a {type(model).__name__}')
        options, num_classes = model.teacher_options, model.num_classes
        with isolated_random_state(0):  # its random weights are replaced
            teacher = build_teacher(options, num_classes, model.data_preprocessor)
        if self._resumed is not None:
            origin = f'the teacher in {runner.loads_from}'
            load_model(teacher.model, dict(state_dict=self._resumed), origin)
            self._resumed = None
        else:
            origin = options.fetch()
            metainfo = getattr(runner.train_dataloader.dataset, 'metainfo', None) or {}
            load_teacher(teacher, origin, num_classes, metainfo.get('classes', ()))
        model.set_teacher(teacher)
        size = sum(parameter.numel() for parameter in teacher.parameters())
        runner.logger.info(f'teacher: {options}, {counted(size, "parameters")}, from {origin}')

    def before_save_checkpoint(self, runner, checkpoint):
        """Save the teacher next to the student."""
        checkpoint['teacher'] = unwrapped(runner.model).teacher.model.state_dict()
