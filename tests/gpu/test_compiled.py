"""Compiled: throughput and memory under torch.compile, apart from the stage fast, since compiling takes minutes."""
import pytest

from gpu.measuring import OTHERS, SIZES, compare

pytestmark = pytest.mark.gpu
_SMALL, _MEDIUM = ('small_12_p16', 'small_12_p8'), ('medium_24_p16', 'medium_24_p8')


@pytest.mark.minutes(4)
def test_small(check):
    """Small 12 under torch.compile at 800x1280, beside the authors' form."""
    compare(check, _SMALL, (), SIZES[:1], compiled=True)


@pytest.mark.minutes(4)
def test_others(check):
    """Small 12, patch 16, and the others under torch.compile at 800x1280."""
    compare(check, _SMALL[:1], OTHERS, SIZES[:1], compiled=True)


@pytest.mark.minutes(6)
def test_small_at_other_sizes(check):
    """Small 12 under torch.compile at 512x512 and 768x768."""
    compare(check, _SMALL, (), SIZES[1:], compiled=True)


@pytest.mark.minutes(6)
def test_medium(check):
    """Medium 24 under torch.compile at 800x1280."""
    compare(check, _MEDIUM, (), SIZES[:1], compiled=True)
