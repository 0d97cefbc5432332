"""Teachers for distillation: classifiers of timm, of mmpretrain, or of this package."""
import torch
from torch import nn

from ..weights import load_model, read_checkpoint

_LIBRARIES = ('timm', 'mmpretrain', 'xcit_dense')


class Teacher(nn.Module):
    """A frozen classifier that takes images normalised for the student.

    Args:
        model: The classifier, from images to logits.
        scale: Factor for each channel, from the student's normalisation to the model's.
        shift: Added to each channel afterwards.
    """

    def __init__(self, model: nn.Module, scale, shift):
        super().__init__()
        self.model = model
        self.register_buffer('scale', torch.tensor(scale).view(-1, 1, 1), persistent=False)
        self.register_buffer('shift', torch.tensor(shift).view(-1, 1, 1), persistent=False)

    def forward(self, images):
        """Return logits (B, classes) of images (B, channels, H, W)."""
        return self.model(images * self.scale + self.shift)


def build_teacher(library: str, name: str, checkpoint: str, *, num_classes: int, mean, std) -> Teacher:
    """Build a teacher without its weights; see `load_teacher`.

    Args:
        library: timm, mmpretrain or xcit_dense.
        name: Name of the model there; for xcit_dense, a name of `xcit_dense.list_models` or the path of a config.
        checkpoint: File of its weights, as for `xcit_dense.weights.read_checkpoint`.
        num_classes: Classes of the student.
        mean: Mean per channel that the student's images are normalised with, from 0 to 255.
        std: Standard deviation per channel, in the same way.
    """
    raise NotImplementedError


def load_teacher(teacher: Teacher, checkpoint: str):
    """Load the weights of a teacher strictly."""
    load_model(teacher.model, read_checkpoint(checkpoint), checkpoint)
