"""Pooling and resizing for sizes that are not known yet, compared with PyTorch's own."""
import pytest
import torch
import torch.nn.functional as F
from mmseg.models.utils import Upsample
from torch.export import Dim

from xcit_dense.export.segmentor import AnySize, OpenUpsample, resize

DYNAMIC = ({2: Dim.DYNAMIC, 3: Dim.DYNAMIC}, )


class Pool(torch.nn.Module):

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, x):
        with AnySize():
            return F.adaptive_avg_pool2d(x, self.size)


@pytest.mark.parametrize('size', [1, 6, (4, 7), (None, 3), (5, None)], ids=str)
def test_adaptive_pooling(size):
    traced = torch.export.export(Pool(size), (torch.randn(2, 3, 13, 17), ), dynamic_shapes=DYNAMIC).module()
    for height, width in [(n, 27 - n) for n in range(2, 26)] + [(3, 40), (61, 7), (16, 32), (1, 1), (1, 5)]:
        x = torch.randn(2, 3, height, width)
        wanted = F.adaptive_avg_pool2d(x, size)
        assert torch.allclose(Pool(size)(x), wanted, atol=1e-6), (height, width)
        if min(height, width) > 1:  # torch takes a dimension of 1 for a constant
            assert torch.allclose(traced(x), wanted, atol=1e-6), (height, width)


@pytest.mark.parametrize('size, align_corners', [(4, False), (3.25, True), (1.5, False), (0.5, True), ((9, 4), False)])
def test_layers_that_enlarge(size, align_corners):
    option = dict(size=size) if isinstance(size, tuple) else dict(scale_factor=size)
    layer = Upsample(**option, mode='bilinear', align_corners=align_corners)
    wanted = [(x, layer(x)) for x in (torch.randn(1, 2, *size) for size in ((13, 17), (5, 40), (32, 32), (7, 5)))]
    opened = OpenUpsample(**option, mode='bilinear', align_corners=align_corners)
    traced = torch.export.export(opened, (torch.randn(1, 2, 12, 20), ), dynamic_shapes=DYNAMIC).module()
    for x, out in wanted:
        assert torch.equal(opened(x), out), x.shape
        assert torch.allclose(traced(x), out, atol=1e-6), x.shape


@pytest.mark.parametrize('align_corners', [False, True])
def test_resizing(align_corners):
    x = torch.randn(2, 5, 7, 3)
    for size in ((5, 7), (11, 4), (1, 1), (40, 41)):
        wanted = F.interpolate(x.permute(0, 3, 1, 2), size, mode='bilinear', align_corners=align_corners)
        assert torch.equal(resize(x, torch.tensor(size), align_corners), wanted.permute(0, 2, 3, 1))
    torch.library.opcheck(resize, (x, torch.tensor([4, 9]), align_corners))
