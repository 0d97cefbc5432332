"""Stochastic depth."""
import torch
from torch import Tensor, nn


class DropPath(nn.Module):
    """In training, each sample skips the branch with a probability; the other samples are scaled up to compensate."""

    def __init__(self, rate: float = 0.):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Multiply the output of a branch (B, N, C) by the factor of each sample."""
        keep = self.draw(x)
        return x if keep is None else x * keep.view(-1, 1, 1)

    def draw(self, x: Tensor):
        """Return the factor of each sample (B), 0 or 1 / (1 - rate); None if not in training, or if the rate is 0."""
        if not self.training or self.rate == 0:
            return None
        drawn = x.new_empty(x.shape[0], dtype=torch.float32).uniform_()
        return (drawn >= self.rate).to(x.dtype) / (1 - self.rate)

    def extra_repr(self) -> str:
        """Show the rate."""
        return f'rate={self.rate}'
