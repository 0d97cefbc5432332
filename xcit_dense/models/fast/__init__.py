"""The fast path: forms written by hand that compute what the modules beside this folder compute, to rounding.

This is the only door. Each function of it takes a part of the model and gives its output, or says with None that the
part must run as it stands: because a layer in it was touched, because the fast path is off (`set_fast`), or because
somebody looks on who needs ordinary operations (compilers, `torch.func`, forward mode).
"""
from .branches import attend, class_weights, feed_forward, gather, mix_neighbours
from .fuse import fuse
from .layers import project_code, run
from .routes import Routes
from .switch import set_fast

__all__ = ['Routes', 'attend', 'class_weights', 'feed_forward', 'fuse', 'gather', 'mix_neighbours', 'project_code',
           'run', 'set_fast']
