"""The hook that gives a `DistilledClassifier` its teacher, and keeps it in checkpoints."""
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from ..compat.mmengine_private import is_resumed


@HOOKS.register_module()
class TeacherHook(Hook):
    """Builds the teacher of a `DistilledClassifier` when a training starts: ``custom_hooks=[dict(type='TeacherHook')]``.

    Checkpoints hold the teacher under ``teacher``, next to the student (``state_dict``): a resumed run needs no other
    file and continues with the same teacher.
    """

    def __init__(self):
        self._resumed = None

    def after_load_checkpoint(self, runner, checkpoint):
        """Keep the teacher of the resumed run."""
        self._resumed = checkpoint.get('teacher') if is_resumed(runner) else None
