"""A classifier that also learns from the outputs of a teacher."""
import torch
from mmpretrain.models import ImageClassifier
from mmpretrain.registry import MODELS

from ..errors import ConfigError
from .losses import hard_distillation, soft_distillation
from .teacher import TeacherOptions

_KINDS = ('hard', 'soft')


@MODELS.register_module()
class DistilledClassifier(ImageClassifier):
    """An ``ImageClassifier`` (the student) that is trained with a teacher, as in DeiT and XCiT.

    In training, the loss is ``(1 - alpha)`` times that of the head and ``alpha`` times the distillation loss. Both
    models see the same images, also mixed ones. In every other way it is an ``ImageClassifier``: its state dict holds
    only the student. `TeacherHook` builds the teacher when a training starts, so a test or prediction does not need it.

    Args:
        teacher: The arguments of `xcit_dense.distill.teacher.TeacherOptions` as a dict.
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
        self._teacher = _Outside()

    @property
    def teacher(self):
        """The teacher, a frozen module from normalised images to logits; None before a training."""
        return self._teacher.module

    def set_teacher(self, module):
        """Take a teacher; a property cannot be set to a module, as torch would make it a part of this model."""
        self._teacher.module = module.eval().requires_grad_(False).to(next(self.parameters()).device)

    @property
    def num_classes(self):
        """Number of logits."""
        return getattr(self.head, 'num_classes', None) or self.backbone.num_classes

    def loss(self, inputs, data_samples):
        """Return ``loss_cls`` and ``loss_distill``, already weighted, and what else the head returns.

        Args:
            inputs: Images (B, channels, H, W), normalised.
            data_samples: Their labels.
        """
        if self.teacher is None:
            raise ConfigError("DistilledClassifier has no teacher: add dict(type='TeacherHook') to custom_hooks of the "
                              'config')
        features = self.extract_feat(inputs)
        losses = self.head.loss(features, data_samples)
        with torch.no_grad():
            target = self.teacher(inputs)
        logits = self.head(features)
        if self.distillation == 'hard':
            distilled = hard_distillation(logits, target)
        else:
            distilled = soft_distillation(logits, target, self.temperature)
        others = {name: value for name, value in losses.items() if name != 'loss'}
        return dict(loss_cls=(1 - self.alpha) * losses['loss'], loss_distill=self.alpha * distilled, **others)

    def _apply(self, function, *args, **kwargs):
        """Move the teacher, too, when the model moves to another device or type."""
        if self.teacher is not None:
            self.teacher._apply(function, *args, **kwargs)
        return super()._apply(function, *args, **kwargs)


class _Outside:
    """Holds a module that is not part of the model around it, and is not copied with it (for averages of weights)."""

    def __init__(self):
        self.module = None

    def __deepcopy__(self, memo):
        return self
