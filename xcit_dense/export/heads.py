"""Necks and heads of mmseg whose layers turn the size of the maps into a constant when traced: here it stays open."""
from contextlib import contextmanager
from fractions import Fraction

import torch.nn.functional as F
from mmseg.models.utils import Upsample, resize

from ..errors import ConfigError
from .resizing import AnySize


class OpenUpsample(Upsample):
    """mmseg's layer, without the ``int`` that makes the size a constant."""

    def forward(self, x):
        """Resize maps (B, C, H, W)."""
        return F.interpolate(x, self.size or self._enlarged(x), None, self.mode, self.align_corners)

    def factor(self):
        """Return the factor for height and width."""
        return Fraction(self.scale_factor)

    def _enlarged(self, x):
        by = self.factor()
        return [length * by.numerator // by.denominator for length in x.shape[-2:]]


def with_open_sizes(model):
    """Change a model so that nothing in it depends on the size that it is traced with, and return it.

    Raises:
        ConfigError: A layer cannot be changed.
    """
    for name, module in model.named_modules():
        if type(module) is Upsample:
            module.__class__ = OpenUpsample
            if not module.size and module.factor().denominator > 64:
                raise ConfigError(f'model.{name} has scale_factor={module.scale_factor}, and only simple fractions '
                                  'such as 2 or 1.5 can be exported')
    return model


@contextmanager
def sizes_left_open():
    """Context in which necks and heads can be traced."""
    defaults = resize.__defaults__
    resize.__defaults__ = (*defaults[:-1], False)  # ``warning``: its check makes the sizes constants
    try:
        with AnySize():
            yield
    finally:
        resize.__defaults__ = defaults
