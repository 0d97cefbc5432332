"""The stand-in for mmcv's compiled ops, where they are missing."""
import pytest
import torch
from mmcv.ops import border_align
from mmcv.ops.info import get_compiler_version


@pytest.mark.skipif('torchvision' not in get_compiler_version(), reason='mmcv with compiled ops is installed')
def test_op_that_is_not_there_says_so_when_called():
    with pytest.raises(NotImplementedError, match="not 'border_align_forward', which none.*pip install .*no-build-iso"):
        border_align(torch.randn(1, 4, 8, 8), torch.zeros(1, 64, 4), 2)
    assert 'torchvision' in get_compiler_version()
