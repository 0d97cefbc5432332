"""The fast path: hand-written forms that compute the same as the modules in the parent folder, up to rounding.

Other code uses only the functions below. Those that run a part of the model return its output, or None if the plain
modules must run: because a layer was modified, because the fast path is off (`set_fast`), or because ordinary
operations are needed (compilers, `torch.func`, forward mode).
"""
from .branches import attend, feed_forward, mix_neighbours
from .conditions import are_plain, are_traceable, can_run, is_on, set_fast
from .fusing import fuse
from .layers import project_code, run
from .norms import sync_group
from .ops import compute_dtype, first_derivative_only

__all__ = ['are_plain', 'are_traceable', 'attend', 'can_run', 'compute_dtype', 'feed_forward', 'first_derivative_only',
           'fuse', 'is_on', 'mix_neighbours', 'project_code', 'run', 'set_fast', 'sync_group']
