r"""XCA in Gram form: queries, keys and values are never built.

Let X (N, C) be the tokens, mu their mean, Xc = X - mu and G = Xc^T Xc. For each head, with its rows of Wq, Wk, Wv:

- Q K^T = Wq G Wk^T + N mq mk^T, where mq = Wq mu + bq is the mean query and mk the mean key: the cross terms
  vanish because Xc sums to zero. The squared lengths of Q's rows are the diagonal of Wq G Wq^T + N mq mq^T.
- With A the softmax, the output of the head is A V = A Wv Xc^T + A (Wv mu + bv). With the head's columns of the
  projection Wp, and summed over the heads, the output is Xc M^T + c with M = sum Wp A Wv and
  c = sum Wp A (Wv mu + bv) + bp.

So XCA is a 1x1 convolution whose weight depends on the image. LayerScale multiplies rows of M and c, stochastic depth
multiplies all of them, and the last product adds to the residual: none of the three needs a pass over the tokens. It
takes 2 N C^2 + 3 C^3 multiply-adds; the token form of `xcit_dense.models.xca` takes 4 N C^2 + 2 N C d.

Its precision, where `cancels` takes the token form instead, and the derivation step by step: docs/design.md.
"""
from itertools import count

import torch
from torch import Tensor, nn

from ..xca import XCA
from . import ops, residual
from .conditions import is_untouched, weight_and_bias
from .mix import Kept, Weights, mix, mix_backward, prepare

#: On a GPU, one of so many passes is checked for digits that the Gram form loses; a prime: every block gets its turn.
CHECK_EVERY = 97
_passes = count(1)


class Form(residual.Form):
    """See `xcit_dense.models.fast.residual.Form`. Besides x, only moments are kept for the backward.

    The forward raises `CancelsError` if the Gram form would lose digits: then the token form must run.
    """
    chunk = 'samples'

    def __init__(self, num_heads: int):
        self.num_heads = num_heads

    def prepare(self, dtype, *parameters):
        return prepare(self.num_heads, *parameters)

    def forward(self, given, x, keep, out):
        centred, mean = ops.centre(x, given.norm, given.dtype)
        # half types round the tokens themselves, so the token form would lose the same
        guard = given.dtype == torch.float32 and (
            x.device.type == 'cpu' or x.is_cuda and next(_passes) % CHECK_EVERY == 0
            and not torch.cuda.is_current_stream_capturing())  # a graph cannot copy to the CPU, so replays do not check
        matrix, offset, kept = mix(mean, ops.gram(centred, centred), x.shape[1], given.weights, given.dtype, guard)
        ops.add_branch(x, ops.linear, centred, matrix, offset, keep, out)
        return mean, matrix, *kept

    def backward(self, given, grad, x, keep, out, mean, matrix, *kept):
        tokens, statistics = ops.normalise(x, given.norm, given.dtype, mean)
        inner = ops.gradient_of_branch(grad, keep, given.dtype, given.scale)
        total, grads = _backward(inner, tokens, mean, matrix, Kept(*kept), Weights(*given.weights),
                                 given.parameters[3:])
        return [*ops.input_gradient(total, x, given.norm, statistics, grad, given.scale, out), *grads]


def is_as_built(attn) -> bool:
    """Whether a module is an `XCA` that nobody modified."""
    if type(attn) is not XCA:
        return False
    parts = attn._modules
    qkv, proj = parts.get('qkv'), parts.get('proj')
    return (type(qkv) is type(proj) is nn.Linear and is_untouched(attn, qkv, proj) and proj.bias is not None
            and attn.temperature.shape in ((attn.num_heads, 1, 1), (1, 1, 1)))


def is_cheaper(x: Tensor) -> bool:
    """Whether the Gram form takes fewer multiply-adds than the token form; the batch size does not matter."""
    _, N, C = x.shape
    if not isinstance(N, int):  # torch.export with dynamic sizes: one graph, in the form for large images
        return True
    # forward: 4 N C^2 against 2 N C^2 + 3 C^3. With the backward, 12 N C^2 against 5 N C^2 + 7 C^3 would allow N > C,
    # but there the forms take the same time (C 384 and 512, 2 cores of an AMD EPYC)
    return 1.5 * C < N


def gram_form(attn, x: Tensor) -> Tensor:
    """Map normed tokens (B, N, C) as an `XCA` does, in ordinary operations, for compilers."""
    dtype = ops.compute_dtype(x)
    args = x, dtype, attn.num_heads, *parameters_of(attn)
    if dtype != ops.statistics_dtype(x):
        return _InHalf.apply(*args)
    with ops.no_autocast(x):
        return _forward(*args)[0]


def parameters_of(attn):
    """Return the parameters of an `XCA`."""
    return *weight_and_bias(attn.qkv), attn.temperature, *weight_and_bias(attn.proj)


def _forward(x, dtype, num_heads, *parameters):
    """Return the output of `gram_form`, and what `_backward` needs."""
    full = x.to(ops.statistics_dtype(x))
    mean = full.mean(1)
    centred = (full - mean.unsqueeze(1)).to(dtype)
    gram = ops.gram(centred, centred)
    matrix, offset, kept = mix(mean, gram, x.shape[1], prepare(num_heads, *parameters), dtype)
    out = (centred @ matrix.mT.to(dtype) + offset.unsqueeze(1)).to(dtype)
    return out, centred, mean, matrix, *kept


def _backward(grad, tokens, mean, matrix, kept, weights, projection):
    """Return the gradient of the normed tokens, and a list of those of the parameters.

    Args:
        grad: Gradient of the output (B, N, C), in the type in which tokens are multiplied.
        tokens: Normed and centred tokens, in that type.
        mean, matrix, kept, weights, projection: As for `xcit_dense.models.fast.mix.mix_backward`.
    """
    N = tokens.shape[1]
    grad_offset = grad.sum(1, dtype=mean.dtype)
    grad_matrix = ops.gram(grad, tokens, is_gradient=True).to(mean.dtype)
    grad_mean, symmetric, grads = mix_backward(grad_matrix, grad_offset, kept, mean, N, weights, projection,
                                               tokens.dtype)
    # the gradient that reaches a token through the mean, minus what centring removes
    row = torch.baddbmm(grad_mean.unsqueeze(1), grad_offset.unsqueeze(1), matrix, beta=1 / N, alpha=-1 / N)
    if tokens.dtype == torch.float16:  # a gradient of N tokens' products may be too small for it
        largest = ops.largest(torch.cat((symmetric, row), 1), (1, 2))
        total = ops.linear(tokens, symmetric / largest, row.squeeze(1) / largest.squeeze(2)).mul_(largest)
    else:
        total = ops.linear(tokens, symmetric, row.squeeze(1))  # the matrix is symmetric
    return total.add_(ops.linear_backward(grad, matrix)), grads


class _InHalf(torch.autograd.Function):
    """`_forward` in a half type, with a gradient whose matrices stay in float32.

    Compilers trace a gradient under the autocast that is on around the compiled call, even that of operations for which
    it is off: autograd's own would multiply these matrices in the half type.
    """

    @staticmethod
    def forward(ctx, x, dtype, num_heads, *parameters):
        with ops.no_autocast(x):  # not around the call: torch 2.14 fails on one that has another inside
            out, *kept = _forward(x, dtype, num_heads, *parameters)
        ctx.num_heads = num_heads
        ctx.save_for_backward(*parameters, *kept)
        return out

    @staticmethod
    def backward(ctx, grad):
        parameters, (tokens, mean, matrix, *kept) = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        # not ops.no_autocast: while a compiler reads this, it may find autocast off
        with torch.autocast(grad.device.type, enabled=False):
            total, grads = _backward(grad, tokens, mean, matrix, Kept(*kept), prepare(ctx.num_heads, *parameters),
                                     parameters[3:])
        return total, None, None, *(None if p is None else g for p, g in zip(parameters, grads, strict=True))
