"""Distillation: a classifier that also learns from the outputs of a teacher, and the hook that gives it one."""
import torch
import torch.nn.functional as F
from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from mmpretrain.models import ImageClassifier
from mmpretrain.registry import MODELS
from torch import Tensor

from .._utils.text import counted
from ..compat.internals import is_resumed
from ..data.batches import unwrapped
from ..train.resuming import isolated_random_state
from ..weights import load_model
from .teacher import TeacherOptions, load_teacher

_KINDS = ('hard', 'soft')


@MODELS.register_module()
class DistilledClassifier(ImageClassifier):
    """An ``ImageClassifier`` (the student) that is trained with a teacher, as in DeiT and XCiT.

    In training, the loss is ``(1 - alpha)`` times that of the head and ``alpha`` times the distillation loss. Both
    models see the same images, also mixed ones. In every other way it is an ``ImageClassifier``: its state dict holds
    only the student. `TeacherHook` builds the teacher when a training starts, so a test or prediction does not need it.

    Args:
        teacher: The arguments of `xcit_dense.ssl.teacher.TeacherOptions` as a dict.
        distillation: ``hard``: cross-entropy with the class that the teacher gives the highest score; ``soft``: KL
            divergence from the teacher's distribution.
        alpha: Weight of the distillation loss, from 0 to 1.
        temperature: Temperature of the soft distributions.
        **kwargs: Arguments of ``mmpretrain.models.ImageClassifier``.

    Raises:
        ValueError: A setting is wrong.
    """

    def __init__(self, *args, teacher: dict, distillation: str = 'hard', alpha: float = 0.5, temperature: float = 1.,
                 **kwargs):
        if distillation not in _KINDS:
            raise ValueError(f'distillation must be {" or ".join(_KINDS)}, got {distillation!r}')
        if not 0 <= alpha <= 1:
            raise ValueError(f'alpha, the weight of the distillation loss, must be from 0 to 1, got {alpha!r}')
        if not temperature > 0:
            raise ValueError(f'temperature must be above 0, got {temperature!r}')
        super().__init__(*args, **kwargs)
        self.distillation, self.alpha, self.temperature = distillation, alpha, temperature
        self.teacher_options = TeacherOptions(**teacher)
        #: Its ``module`` is the teacher, from normalised images to logits; None before a training.
        self.teacher = _Outside()

    def loss(self, inputs, data_samples):
        """Return ``loss_cls`` and ``loss_distill``, already weighted, and what else the head returns."""
        features = self.extract_feat(inputs)
        losses = self.head.loss(features, data_samples)
        with torch.no_grad():
            target = self.teacher.module(inputs)
        distilled = distillation_loss(self.distillation, self.head(features), target, self.temperature)
        others = {name: value for name, value in losses.items() if name != 'loss'}
        return dict(loss_cls=(1 - self.alpha) * losses['loss'], loss_distill=self.alpha * distilled, **others)


class _Outside:
    """Holds a module that is not part of the model around it, and is not copied with it (for averages of weights)."""

    def __init__(self):
        self.module = None

    def __deepcopy__(self, memo):
        return self


def distillation_loss(kind: str, logits: Tensor, teacher: Tensor, temperature: float = 1.) -> Tensor:
    """Return the distillation loss of a student's logits and those of its teacher, both (B, classes).

    Args:
        kind: As ``distillation`` of `DistilledClassifier`; the KL divergence is divided by the number of logits.
        temperature: Softens both distributions; its square keeps the size of the gradients (Hinton et al., 2015).
    """
    if kind == 'hard':
        return F.cross_entropy(logits.float(), teacher.argmax(1))
    ours, theirs = (F.log_softmax(x.float() / temperature, dim=1) for x in (logits, teacher))
    return F.kl_div(ours, theirs, reduction='sum', log_target=True) * temperature**2 / logits.numel()


@HOOKS.register_module()
class TeacherHook(Hook):
    """Builds the teacher of a `DistilledClassifier` for a training: ``custom_hooks=[dict(type='TeacherHook')]``.

    A resumed run must continue with the same teacher, so checkpoints have its digest.

    Args:
        save: Whether checkpoints hold the teacher too, under ``teacher``, next to the student (``state_dict``). A
            resumed run then needs no other file, and goes on saving it.
    """

    priority = 'HIGHEST'  # before hooks that compute losses when a training starts

    def __init__(self, save: bool = False):
        self.save = save
        self._resumed = None, None, None

    def after_load_checkpoint(self, runner, checkpoint):
        """Keep the teacher of the resumed run, if it has one, and its digest."""
        if is_resumed(runner):
            self._resumed = [*map(checkpoint.get, ('teacher', 'teacher_digest', 'teacher_size'))]

    def before_train(self, runner):
        """Build the teacher and load its weights: those of the resumed run, or else those of its file.

        Errors are those of `TeacherOptions.build` and `load_teacher`.
        """
        model = unwrapped(runner.model)
        options = model.teacher_options
        num_classes = getattr(model.head, 'num_classes', None) or model.backbone.num_classes
        with isolated_random_state(0):  # its random weights are replaced
            teacher, origin = options.build(num_classes, model.data_preprocessor)
        (saved, wanted, side), self._resumed = self._resumed, (None, None, None)
        teacher.set_size(side)
        if saved is not None:
            origin = f'the teacher in {runner.loads_from}'
            load_model(teacher.model, dict(state_dict=saved), origin)
            self.save = True  # as before
        else:
            metainfo = getattr(runner.train_dataloader.dataset, 'metainfo', None) or {}
            origin = load_teacher(teacher, origin, metainfo.get('classes', ()), wanted)
        self._facts = dict(teacher_digest=teacher.digest, teacher_size=teacher.size)
        model.teacher.module = teacher.eval().requires_grad_(False).to(next(model.parameters()).device)
        size = sum(parameter.numel() for parameter in teacher.parameters())
        side = f', images of {teacher.size} pixels' if teacher.size else ''
        runner.logger.info(f'teacher: {options}, {counted(size, "parameters")}{side}, from {origin}')

    def before_save_checkpoint(self, runner, checkpoint):
        """Save the digest of the teacher, and if asked for the teacher."""
        checkpoint.update(self._facts)
        if self.save:
            checkpoint['teacher'] = unwrapped(runner.model).teacher.module.model.state_dict()
