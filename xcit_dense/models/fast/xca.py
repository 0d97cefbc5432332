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

Precision. With centring, the form is as exact as the token form if all tokens share a large component; with G of X
itself, that component would cancel in later differences. Sums and the C x C matrices stay in float32, even under
autocast. One weakness is left: if the tokens vary most in directions that the weights of a query or key ignore, the
squared lengths are small differences of large entries of G, in float32. On a CPU, `cancels` detects this and the token
form runs. On other devices, where the check would block the device, and under a compiler, it is not detected. How
large the error is, and the derivation step by step: docs/design.md.
"""
import torch
from torch import Tensor

from . import ops, products
from .mix import Kept, mix, mix_backward
from .switch import first_derivative_only
from .untouched import weight_and_bias


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
    with ops.no_autocast(x):
        full = x.to(ops.statistics_dtype(x))
        mean = full.mean(1)
        centred = (full - mean.unsqueeze(1)).to(dtype)
        gram = centred.mT @ centred if centred.dtype == mean.dtype else _Gram.apply(centred)
        matrix, offset, _ = mix(mean, gram, x.shape[1], attn.num_heads, *parameters_of(attn), None,
                                dtype)
        out = centred @ matrix.mT.to(dtype) + offset.unsqueeze(1)
        return out.to(dtype)


def parameters_of(attn):
    """Return the parameters of an `XCA`, as `mix` takes them."""
    return *weight_and_bias(attn.qkv), attn.temperature, *weight_and_bias(attn.proj)


def residual(x: Tensor, norm, gamma, keep, parameters, num_heads: int) -> Tensor:
    """Return x + keep * gamma * XCA(norm(x)).

    Args:
        x: Tokens (B, N, C).
        norm: Weight, bias and eps of the layer norm before the branch.
        gamma: LayerScale (C), or None for ones.
        keep: Factor of each sample (B), or None for ones: stochastic depth.
        parameters: As `parameters_of` returns them.
        num_heads: h.

    Raises:
        CancelsError: The Gram form would lose digits; the token form must run.
    """
    return _GramResidual.apply(x, keep, num_heads, norm[2], *norm[:2], *parameters, gamma)


class _Gram(torch.autograd.Function):
    """Xc^T Xc of (B, N, C) of a half type, summed in float32."""

    @staticmethod
    def forward(ctx, centred):
        ctx.save_for_backward(centred)
        return products.gram(centred, centred)

    @staticmethod
    def backward(ctx, grad):
        centred, = ctx.saved_tensors
        return centred @ (grad + grad.mT).to(centred.dtype)


class _GramResidual(torch.autograd.Function):
    """x + keep * gamma * XCA(norm(x)); keeps x and its moments for the backward, nothing else of the size of x."""

    @staticmethod
    def forward(ctx, x, keep, num_heads, eps, norm_weight, norm_bias, *weights):
        ctx.eps, ctx.num_heads, ctx.dtype = eps, num_heads, ops.compute_dtype(x)
        norm = norm_weight, norm_bias, eps
        with ops.no_autocast(x):
            mean, gram, centred = _moments(x, norm, ctx.dtype, keep)
            # half types round the tokens themselves, so the token form would lose the same
            guard = x.device.type == 'cpu' and ctx.dtype == torch.float32
            matrix, offset, kept = mix(mean, gram, x.shape[1], num_heads, *weights, ctx.dtype, guard)
            ctx.save_for_backward(x, keep, norm_weight, norm_bias, mean, matrix, *kept, *weights)
            matrix, = ops.converted(ctx.dtype, matrix)
            out = ops.empty_output(x, keep)
            for b, n in ops.chunks(x, keep):
                part = centred if centred is not None else ops.normalise(x[b, n], norm, ctx.dtype, mean[b])[0]
                inside, outside = ops.places_of_bias(x, offset[b])
                part = products.linear(part, matrix[b], inside)
                ops.add_branch(x[b, n], part, outside, None if keep is None else keep[b], out[b, n])
        return out

    @first_derivative_only
    def backward(ctx, grad):
        x, keep, norm_weight, norm_bias, mean, matrix, *others = ctx.saved_tensors
        kept, weights = Kept(*others[:len(Kept._fields)]), others[len(Kept._fields):]
        N = x.shape[1]
        norm = norm_weight, norm_bias, ctx.eps
        grad = grad.contiguous()
        scale = ops.gradient_scale(grad, keep, ctx.dtype)
        parts = ops.chunks(x, keep)

        def of_chunk(b, n):
            """Return centred tokens, what their norm needs, the gradient of the branch, and its sum over the tokens."""
            return (*ops.normalise(x[b, n], norm, ctx.dtype, mean[b]),
                    *ops.gradient_of_branch(grad[b, n], None if keep is None else keep[b], ctx.dtype, scale))

        with ops.no_autocast(x):
            whole = of_chunk(*parts[0]) if ops.is_whole(parts, x) else None
            if whole is not None:
                tokens, _, rounded, grad_offset = whole
                grad_matrix = products.gram(rounded, tokens, is_gradient=True).to(mean.dtype)
            else:
                grad_matrix, grad_offset = torch.zeros_like(matrix), torch.zeros_like(mean)
                for b, n in parts:
                    tokens, _, rounded, total = of_chunk(b, n)
                    grad_matrix[b] += products.gram(rounded, tokens, is_gradient=True)
                    grad_offset[b] += total
            grad_mean, symmetric, grad_weights = mix_backward(grad_matrix, grad_offset, kept, mean, N,
                                                              ctx.num_heads, *weights, ctx.dtype)
            # the gradient that reaches a token through the mean, minus what centring removes
            row = torch.baddbmm(grad_mean.unsqueeze(1), grad_offset.unsqueeze(1), matrix, beta=1 / N, alpha=-1 / N)
            row, range_ = row.squeeze(1), None
            if ctx.dtype == torch.float16:  # a gradient of N tokens' products may be too small for it
                range_ = ops.exponent(torch.linalg.vector_norm(symmetric, float('inf'), (1, 2), keepdim=True))
                symmetric = symmetric / range_
            symmetric, matrix = ops.converted(ctx.dtype, symmetric, matrix)
            grad_x = ops.empty_output(grad, keep)

            def to_tokens(b, n):
                tokens, statistics, rounded, _ = whole or of_chunk(b, n)
                inside, outside = ops.places_of_bias(x, row[b])
                if inside is not None and range_ is not None:
                    inside = inside / range_[b, 0]
                inner = products.linear(tokens, symmetric[b], inside)  # the matrix is symmetric
                if range_ is not None:
                    inner *= range_[b]
                inner = products.add_linear_backward(inner, rounded, tokens, matrix[b])
                return ops.input_gradient(inner, x[b, n], norm, statistics, grad[b, n], scale, grad_x[b, n], outside)

            grad_norm = ops.summed(parts, to_tokens, norm[:2])
        return grad_x, None, None, None, *ops.unscaled(scale, *grad_norm, *grad_weights)


def _moments(x, norm, dtype, keep):
    """Return mean (B, C) and Gram matrix (B, C, C) of the normed tokens, and the centred tokens if they are one chunk.

    Chunks are centred by their own means; the differences between these are added at the end (Chan, Golub and LeVeque
    1979), so that every difference is computed once and exactly.
    """
    parts = ops.chunks(x, keep)
    if ops.is_whole(parts, x):
        centred, mean = ops.centre(x, norm, dtype)
        return mean, products.gram(centred, centred), centred
    B, N, C = x.shape
    mean = x.new_zeros(B, C, dtype=ops.statistics_dtype(x))
    gram = x.new_zeros(B, C, C, dtype=mean.dtype)
    means = {}
    for b, n in parts:
        centred, own = ops.centre(x[b, n], norm, dtype)
        gram[b] += products.gram(centred, centred)
        means.setdefault(b.start, []).append((n.stop - n.start, own))
    for b, found in means.items():
        counts = torch.tensor([count for count, _ in found], dtype=mean.dtype).unsqueeze(1)
        found = torch.cat([own for _, own in found])  # (chunks, C)
        mean[b] = (found * counts).sum(0) / N
        between = (found - mean[b]) * counts.sqrt()
        gram[b].addmm_(between.t(), between)
    return mean, gram, None
