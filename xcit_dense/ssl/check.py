"""Check early that a training can have its teacher."""
from .._utils.text import type_name


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
    if type_name(model.get('type')) != 'DistilledClassifier':
        return
    from .teacher import TeacherOptions  # needs mmpretrain, which only classifiers need
    options = TeacherOptions(**model['teacher'])
    options.find()
    if not resumed:
        options.fetch()
