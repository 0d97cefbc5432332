"""The switch that turns the fast path off, and the error for what the fast path cannot do."""
import functools
import os

import torch

from ...errors import SetupError

_VARIABLE = 'XCIT_DENSE_FAST'
_word = os.environ.get(_VARIABLE, '')
if _word not in ('', '0', '1'):
    raise SetupError(f'the environment variable {_VARIABLE} must be 1 (on) or 0 (off), got {_word!r}')
_on = _word != '0'


def is_on() -> bool:
    """Whether the fast path is switched on."""
    return _on


class set_fast:
    """Turn the fast path on or off for every model of this process, from this call on or for a ``with`` block.

    When it is off, a model consists of ordinary modules with torch's own autograd: slower and larger in memory, but
    with second derivatives. Outputs and gradients are the same up to rounding. The environment variable
    ``XCIT_DENSE_FAST=0`` turns it off from the start.

    Args:
        enabled: True or False.

    Raises:
        ValueError: ``enabled`` is anything else.
    """

    def __init__(self, enabled: bool):
        global _on
        if not isinstance(enabled, bool):
            raise ValueError(f'set_fast needs True or False, got {enabled!r}')
        self._before = _on
        self._enabled = _on = enabled

    def __enter__(self):
        global _on
        _on = self._enabled
        return self

    def __exit__(self, *_):
        global _on
        _on = self._before


def first_derivative_only(backward):
    """Make a hand-written backward raise an error when it is differentiated, which would give zeros or worse.

    Its steps are not part of a graph. If gradients are enabled in it, a caller wants to differentiate it.
    """

    @functools.wraps(backward)
    def run(ctx, *grads):
        if (torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()
                or any(torch._C._functorch.is_legacy_batchedtensor(grad) for grad in grads if grad is not None)):
            raise RuntimeError(
                "XCiT's fast path cannot be differentiated twice (create_graph=True, a gradient penalty, "
                'torch.autograd.functional.hessian) or for a batch of gradients (is_grads_batched=True). Run the '
                'forward pass, not only the backward pass, inside "with xcit_dense.set_fast(False):".')
        return backward(ctx, *grads)

    return staticmethod(run)
