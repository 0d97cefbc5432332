"""Tokens (B, N, C) and maps (B, C, H, W): two views of the same numbers."""
import torch
from torch import Tensor


def tokens_to_map(x: Tensor, height: int, width: int) -> Tensor:
    """View tokens (B, N, C) as a map (B, C, height, width), channels last in memory.

    Of all views with the same numbers, only this one has the batch stride that oneDNN expects. With B = 1, a depthwise
    convolution of 100 x 160 x 384 takes 3 ms; with another stride it reorders and takes 13 to 30 ms.
    In a compiled graph it is a copy, because inductor cannot order the strides of the view if height and width are
    dynamic (seen with torch 2.14).
    """
    x = x.unflatten(1, (height, width)).permute(0, 3, 1, 2)
    return x.contiguous() if torch.compiler.is_compiling() else x


def map_to_tokens(x: Tensor) -> Tensor:
    """View a map (B, C, H, W) as tokens (B, H * W, C)."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)
