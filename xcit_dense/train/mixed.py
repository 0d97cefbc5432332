"""Mixed precision without a GPU."""
from contextlib import contextmanager

import torch
from mmengine.device import get_device
from mmengine.optim import OptimWrapper
from mmengine.registry import OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class Bfloat16OptimWrapper(OptimWrapper):
    """Computes losses under autocast in bfloat16, on any device; parameters, gradients and optimizer stay in float32.

    mmengine's `AmpOptimWrapper` needs a GPU, as it scales the loss. bfloat16 has the range of float32, so there is
    nothing to scale. Arguments are those of `OptimWrapper`.
    """

    #: The type that is computed in, as `AmpOptimWrapper` names it.
    cast_dtype = torch.bfloat16

    @contextmanager
    def optim_context(self, model):
        """Context of the forward pass of a training step."""
        with super().optim_context(model), torch.autocast(get_device(), self.cast_dtype):
            yield
