"""Whole models in pickles of version 0.1, whose modules had other attributes."""
import torch
from torch import nn

from .drop_path import DropPath


@torch.no_grad()
def upgrade_block(block):
    """Turn a block of version 0.1 into a current one that computes the same.

    In version 0.1, fusing set what it had folded to None, and stored in `taps` what each tap of LPI adds to the biases.
    """
    block.drop_path = DropPath(vars(block).pop('drop_path_rate')).train(block.training)
    for name in ('gamma1', 'gamma2', 'gamma3'):
        if getattr(block, name) is None:
            delattr(block, name)
            setattr(block, name, nn.Parameter(torch.ones_like(block.attn.proj.bias), False))
    lpi = block.local_mp
    if lpi.taps1 is not None:
        block.norm3.weight, block.norm3.bias = _split_off(lpi.conv1, lpi.taps1)
    if lpi.taps2 is not None:
        lpi.bn = nn.BatchNorm2d(len(lpi.taps2), eps=0).eval()
        lpi.bn.weight, lpi.bn.bias = _split_off(lpi.conv2, lpi.taps2)
    del lpi.taps1, lpi.taps2


def _split_off(conv, taps):
    """Remove the shift before a depthwise convolution from its bias; return it as weight (ones) and bias of a norm.

    A tap (C, 3, 3) is weight times shift, so one tap of each channel gives the shift: the one with the largest weight.
    """
    conv.bias -= taps.sum((1, 2))
    weight = conv.weight.flatten(1)
    largest = weight.abs().argmax(1, keepdim=True)
    weight = weight.gather(1, largest)
    shift = torch.where(weight == 0, 0, taps.flatten(1).gather(1, largest) / weight).squeeze(1)
    return nn.Parameter(torch.ones_like(shift), False), nn.Parameter(shift, False)
