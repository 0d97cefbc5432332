"""Compiled: throughput and memory under torch.compile, apart from the stage fast, since compiling takes minutes."""
import pytest

from gpu.measuring import OTHERS, SIZES, compare

pytestmark = pytest.mark.gpu
_SMALL, _MEDIUM = ('small_12_p16', 'small_12_p8'), ('medium_24_p16', 'medium_24_p8')


@pytest.mark.minutes(6)
@pytest.mark.parametrize('models', (
    (_SMALL, (), SIZES[:1]), (_SMALL[:1], OTHERS, SIZES[:1]), (_SMALL, (), SIZES[1:]), (_MEDIUM, (), SIZES[:1])),
    ids=('small', 'others', 'small_at_other_sizes', 'medium'))
def test_throughput(check, models):
    """Small 12 and medium 24 under torch.compile at several sizes, beside the authors' form and others."""
    compare(check, *models, compiled=True)
