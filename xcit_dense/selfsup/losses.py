"""The loss of DINO."""
import torch
from torch import Tensor
from torch.special import entr


def dino_loss(student: Tensor, teacher: Tensor, centre: Tensor, student_temperature: float,
              teacher_temperature: float):
    """Return the cross-entropy between the teacher's and the student's distributions of different views.

    Args:
        student: Outputs for all views, at least two, (views, B, prototypes); the teacher's come first, in their order.
        teacher: Outputs for the teacher's views, (global views, B, prototypes).
        centre: What is subtracted from the teacher's outputs, (prototypes, ). All is computed in its precision, also
            within autocast.
        student_temperature: Divides the student's outputs.
        teacher_temperature: Divides the teacher's centred outputs; lower is sharper.

    Returns:
        The loss, averaged over images and pairs of different views; the mean entropy of the teacher's distributions;
        that of the student's. All in nats.

    Raises:
        ValueError: There is only one view, which is in no pair.
    """
    if len(student) < 2:
        raise ValueError(f'dino_loss compares at least 2 views, got {len(student)}')
    student, teacher = student.to(centre.dtype), teacher.to(centre.dtype)
    with torch.autocast(student.device.type, enabled=False):
        targets = ((teacher - centre) / teacher_temperature).softmax(-1)
        logs = (student / student_temperature).log_softmax(-1)
        products = torch.einsum('gbk,vbk->gv', targets, logs) / student.shape[1]
    pairs = products.numel() - len(targets)
    loss = (products.trace() - products.sum()) / pairs
    with torch.no_grad():
        entropies = entr(targets).sum(-1).mean(), entr(logs.exp()).sum(-1).mean()
    return loss, *entropies
