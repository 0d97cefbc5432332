"""Distillation losses of DeiT and XCiT."""
import torch.nn.functional as F
from torch import Tensor


def hard_distillation(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy with the teacher's classes.

    Args:
        logits: Of the student, (B, classes).
        teacher: Logits of the teacher, in the same shape.
    """
    return F.cross_entropy(logits.float(), teacher.argmax(1))


def soft_distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the KL divergence of the student's distribution from the teacher's, divided by the number of logits.

    Both are softened by the temperature; its square keeps the size of the gradients (Hinton et al., 2015).

    Args:
        logits: As for `hard_distillation`.
        teacher: As for `hard_distillation`.
        temperature: Above 0.
    """
    ours, theirs = (F.log_softmax(x.float() / temperature, dim=1) for x in (logits, teacher))
    return F.kl_div(ours, theirs, reduction='sum', log_target=True) * temperature**2 / logits.numel()
