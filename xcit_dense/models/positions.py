"""Fourier code of the token positions (paper, section 3.4)."""
import math

import torch
from torch import Tensor, nn

from . import fast


class FourierPositions(nn.Module):
    """Sines and cosines of row and column, projected to C channels by a 1x1 convolution."""
    channels_per_axis = 32
    temperature = 10000

    def __init__(self, embed_dims: int):
        super().__init__()
        self.token_projection = nn.Conv2d(2 * self.channels_per_axis, embed_dims, kernel_size=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the projected code of the grid of a map (B, C, Hp, Wp), to be added to it: (1 or B, C, Hp, Wp)."""
        rows = fourier_code(x, -2, self.channels_per_axis, self.temperature)  # (Hp, 32)
        columns = fourier_code(x, -1, self.channels_per_axis, self.temperature)  # (Wp, 32)
        y = fast.project_code(self.token_projection, rows, columns)
        if y is not None:
            return y
        height, width = x.shape[-2:]
        rows = rows.t().unsqueeze(2).expand(-1, height, width)
        columns = columns.t().unsqueeze(1).expand(-1, height, width)
        return self.token_projection(torch.cat((rows, columns)).unsqueeze(0))  # rows come first


@torch.fx.wrap  # the sizes are not known when torch.fx traces a model
def fourier_code(x: Tensor, dim: int, channels: int, temperature: float) -> Tensor:
    """Return sines (even channels) and cosines (odd) of the 1-based positions along an axis of ``x``, in its type.

    The shape is (length, channels).
    """
    length = x.shape[dim]
    # half types cannot represent all positions exactly: at least float32 until the code is computed
    dtype = torch.promote_types(x.dtype, torch.float32)
    position = torch.arange(1, length + 1, dtype=dtype, device=x.device) * (2 * math.pi / (length + 1e-6))
    channel = torch.arange(0, channels, 2, dtype=dtype, device=x.device)
    angle = position[:, None] / temperature**(channel / channels)
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1).to(x.dtype)
