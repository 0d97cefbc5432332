"""The projection head of DINO."""
from itertools import pairwise

import torch
import torch.nn.functional as F
from mmengine.registry import MODELS
from torch import Tensor, nn

from ..models.trunk import init_linear


@MODELS.register_module()
class DINOHead(nn.Module):
    """Three linear layers, L2 norm, and similarities with prototypes. Names of parameters are those of DINO's files.

    Paper: `Emerging Properties in Self-Supervised Vision Transformers <https://arxiv.org/abs/2104.14294>`_.

    Args:
        in_channels: Channels of the feature.
        num_prototypes: Outputs: 65,536 for ImageNet, fewer for small data.
        hidden_channels: Channels of the two hidden layers.
        bottleneck_channels: Channels of the normed output of the layers.
        norm_last_layer: Whether all prototypes have length 1. Otherwise their lengths are learned, which large models
            may use and which is less stable.
        batch_norm: Whether each hidden layer is followed by a batch norm. Small models then learn in far fewer steps:
            the features of a fresh one hardly differ between images.
    """

    def __init__(self, in_channels: int, num_prototypes: int = 65_536, hidden_channels: int = 2048,
                 bottleneck_channels: int = 256, norm_last_layer: bool = True, batch_norm: bool = False):
        super().__init__()
        self.num_prototypes = num_prototypes
        sizes = in_channels, hidden_channels, hidden_channels
        layers = [layer for inputs, outputs in pairwise(sizes) for layer in (
            nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if batch_norm else []), nn.GELU())]
        self.mlp = nn.Sequential(*layers, nn.Linear(hidden_channels, bottleneck_channels))
        self.apply(init_linear)
        self.last_layer = Prototypes(bottleneck_channels, num_prototypes, norm_last_layer)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, num_prototypes) for features (B, in_channels)."""
        return self.last_layer(F.normalize(self.mlp(x), dim=-1))


class Prototypes(nn.Module):
    """A linear layer without bias whose rows have a direction (``weight_v``) and a length (``weight_g``)."""

    def __init__(self, in_channels, num_prototypes, norm: bool):
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(num_prototypes, 1), requires_grad=not norm)
        # as torch's linear layers start
        self.weight_v = nn.Parameter(torch.empty(num_prototypes, in_channels).uniform_(-1, 1) / in_channels**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the similarities (B, num_prototypes) of features (B, in_channels)."""
        return F.linear(x, F.normalize(self.weight_v, dim=-1) * self.weight_g)
