"""The losses of a distillation, computed by hand in float64."""
import math

import pytest
import torch

from xcit_dense.distill.losses import hard_distillation, soft_distillation

STUDENT = [[1.5, -0.25, 0.75], [0.5, 2., -1.]]
TEACHER = [[-1., 3., 0.5], [2.5, 0.25, 2.25]]


def softmax(values, temperature=1.):
    powers = [math.exp(value / temperature) for value in values]
    return [power / sum(powers) for power in powers]


def test_hard():
    """The cross-entropy with the classes 1 and 0."""
    wanted = -(math.log(softmax(STUDENT[0])[1]) + math.log(softmax(STUDENT[1])[0])) / 2
    assert hard_distillation(torch.tensor(STUDENT), torch.tensor(TEACHER)).item() == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize('temperature', (1., 3.))
def test_soft(temperature):
    """The divergence summed over images and classes, times the squared temperature, by the number of logits."""
    total = 0.
    for ours, theirs in zip(STUDENT, TEACHER, strict=True):
        pairs = zip(softmax(ours, temperature), softmax(theirs, temperature), strict=True)
        total += sum(q * (math.log(q) - math.log(p)) for p, q in pairs)
    got = soft_distillation(torch.tensor(STUDENT), torch.tensor(TEACHER), temperature)
    assert got.item() == pytest.approx(total * temperature**2 / 6, rel=1e-5)


def test_a_student_that_agrees_has_no_soft_loss():
    assert soft_distillation(torch.tensor(STUDENT), torch.tensor(STUDENT), 2.).item() == 0
