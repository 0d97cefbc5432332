"""Check early that a training can have its teacher."""
from ..errors import ConfigError
from ..text import type_name


def check_teacher(cfg, resumed: bool = False):
    """Check that a training can have its teacher, before anything that takes long; other configs are left alone.

    The teacher's file is fetched now, as a download may fail.

    Args:
        cfg: The config.
        resumed: Whether the teacher comes from a checkpoint of the run.

    Raises:
        CheckpointError: There is no such file.
        ConfigError: The config has no hook for the teacher, or names no model that exists.
        SetupError: The library of the teacher is not installed.
    """
    model = cfg.get('model') or {}
    if type_name(model.get('type')) != 'DistilledClassifier':
        return
    if not any(type_name(hook.get('type')) == 'TeacherHook' for hook in cfg.get('custom_hooks') or ()):
        raise ConfigError("custom_hooks has no dict(type='TeacherHook'), so there would be no teacher: add it. A list "
                          'in a config replaces that of its base')
    from .teacher import TeacherOptions  # needs mmpretrain, which only classifiers need
    options = TeacherOptions(**model['teacher'])
    options.find()
    if not resumed:
        options.fetch()
