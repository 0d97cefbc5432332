"""mmengine's runner with checkpoints that are read safely and loaded strictly."""
from mmengine.model import is_model_wrapper
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from ..checkpoint import load_model, newest_checkpoint, read_checkpoint


@RUNNERS.register_module()
class DenseRunner(Runner):
    """Runner of every config of this package (``runner_type = 'DenseRunner'``).

    Unlike mmengine's own, it resumes checkpoints with torch 2.6 and later, evaluates no text out of
    a checkpoint, refuses a checkpoint that does not fit the model, and does not start over when
    there is nothing to resume.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self._resume and self._load_from is None:
            self._load_from = str(newest_checkpoint(self.work_dir))

    def load_checkpoint(self, filename, map_location='cpu', strict=True, revise_keys=None):
        """Load the model's weights from a file.

        Args:
            filename: As for `xcit_dense.checkpoint.read_checkpoint`.
            map_location: As for `torch.load`.
            strict: Kept for mmengine's callers; loading is always strict.
            revise_keys: Likewise; ``module.`` prefixes are always taken off.

        Returns:
            The checkpoint, without the text of its config.

        Raises:
            CheckpointError: The file cannot be read or does not fit the model.
        """
        checkpoint = read_checkpoint(filename, map_location)
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get('meta'), dict):
            # mmengine would run the text as Python when it resumes
            checkpoint['meta'] = {k: v for k, v in checkpoint['meta'].items() if k not in ('cfg', 'config')}
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        model = self.model.module if is_model_wrapper(self.model) else self.model
        load_model(model, checkpoint, filename)
        self._has_loaded = True
        return checkpoint
