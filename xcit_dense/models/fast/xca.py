r"""Cross-covariance attention (XCA): attention between channels instead of tokens, in two forms.

Section 3.2 of the XCiT paper. Per head, with queries Q, keys K and values V of shape (d, N),

.. math:: \text{softmax}(\tau \, \hat Q \hat K^T) \, V,

where the hat is the l2 norm over the N tokens. The attention matrix is d x d, so the cost is linear in N.

The *token form* computes it as written: 4 N C^2 + 2 N C d multiply-adds.

The *Gram form* needs 2 N C^2 + 3 C^3 and builds neither queries, keys nor values. Let X (N, C) be the tokens,
mu their mean, Xc = X - mu and G = Xc^T Xc. With the rows of Wq, Wk, Wv that belong to a head,

- Q K^T = Wq G Wk^T + N mq mk^T, where mq = Wq mu + bq is the mean query and mk the mean key: the cross terms
  vanish because Xc sums to zero. The squared lengths of Q's rows are the diagonal of Wq G Wq^T + N mq mq^T.
- With A the softmax, the head gives A V = A Wv Xc^T + A (Wv mu + bv). With the head's columns of the projection
  Wp, and summed over the heads, the output is Xc M^T + c with M = sum Wp A Wv and c = sum Wp A (Wv mu + bv) + bp.

So XCA is a 1x1 convolution whose weight depends on the image. LayerScale multiplies rows of M and c, stochastic depth
all of them, and the residual is what the last product adds to: no pass over the tokens for any of the three.

Centring is what makes this as exact as the token form: with G of X itself, a component that all tokens share cancels
in later differences. Sums and the C x C matrices stay in float32 whatever autocast says.
"""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import pieces


class XCA(nn.Module):
    """Cross-covariance attention, in the form that is cheaper for the call.

    Args:
        embed_dims: Channels C.
        num_heads: Heads h; each has d = C / h channels and a temperature of its own.
        qkv_bias: Whether the query-key-value projection has a bias.
        drop_rate: Probability that an entry of the attention matrix is dropped in training.
    """

    def __init__(self, embed_dims: int, num_heads: int, qkv_bias: bool = True, drop_rate: float = 0.):
        super().__init__()
        self.num_heads = num_heads
        self.drop_rate = drop_rate
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(embed_dims, embed_dims * 3, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Map normed tokens (B, N, C) to tokens (B, N, C)."""
        if self._gram_is_cheaper(x):
            return self.gram_form(x)
        return self.token_form(x)

    def token_form(self, x: Tensor) -> Tensor:
        """XCA by queries, keys and values."""
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 4, 1)  # three of (B, h, d, N)
        attn = (_unit(q) @ _unit(k).transpose(-2, -1) * self.temperature).softmax(dim=-1)  # (B, h, d, d)
        mask = self._draw_mask(x)
        if mask is not None:
            attn = attn * mask
        x = attn.to(v.dtype) @ v  # (B, h, d, N)
        return self.proj(x.permute(0, 3, 1, 2).reshape(B, N, C))

    def gram_form(self, x: Tensor) -> Tensor:
        """XCA by the mean and the covariance of the tokens."""
        dtype = pieces.compute_dtype(x)
        with pieces.no_autocast(x):
            full = x.to(pieces.statistics_dtype(x))
            mean = full.mean(1)
            centred = (full - mean.unsqueeze(1)).to(dtype)
            gram = centred.mT @ centred if centred.dtype == mean.dtype else _Gram.apply(centred)
            matrix, offset = mix(mean, gram, x.shape[1], self._draw_mask(x), *self._weights(None))
            out = centred @ matrix.mT.to(dtype) + offset.unsqueeze(1)
            return out.to(dtype)

    def residual(self, x: Tensor, norm: nn.LayerNorm, gamma, keep) -> Tensor:
        """Return x + keep * gamma * XCA(norm(x)).

        Args:
            x: Tokens (B, N, C).
            norm: The norm before the attention.
            gamma: LayerScale (C), or None for ones.
            keep: Factor of each sample (B), or None for ones: stochastic depth.
        """
        if pieces.is_traced() or not self._gram_is_cheaper(x):
            return pieces.add_scaled(x, self(norm(x)), gamma, keep)
        return _GramResidual.apply(x, keep, self._draw_mask(x), norm.eps, norm.weight, norm.bias,
                                   *self._weights(gamma))

    def fuse(self, norm: nn.LayerNorm, gamma: Tensor):
        """Take the affine part of the norm before and LayerScale behind into the linear layers, for inference."""
        fuse_affine(norm, self.qkv)
        fuse_scale(self.proj, gamma)

    def _weights(self, gamma):
        return self.qkv.weight, self.qkv.bias, self.temperature, self.proj.weight, self.proj.bias, gamma

    def _draw_mask(self, x):
        if not self.training or self.drop_rate == 0:
            return None
        width = x.shape[2] // self.num_heads
        ones = torch.ones(len(x), self.num_heads, width, width, dtype=pieces.statistics_dtype(x), device=x.device)
        return F.dropout(ones, self.drop_rate)

    def _gram_is_cheaper(self, x):
        """Compare multiply-adds, of which a batch takes as many times more in both forms."""
        _, N, C = x.shape
        if not isinstance(N, int):  # torch.export with dynamic sizes: one graph, in the form made for large ones
            return True
        # forward: 4 N C^2 against 2 N C^2 + 3 C^3; with the backward: 12 N C^2 against 5 N C^2 + 12 C^3
        return (1.7 if torch.is_grad_enabled() else 1.5) * C < N


def mix(mean, gram, num_tokens, mask, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias, gamma):
    """Make the 1x1 convolution that XCA is on an image, from the tokens' first and second moments.

    Args:
        mean: Mean of the tokens (B, C).
        gram: Sum over the tokens of centred token times centred token (B, C, C).
        num_tokens: N.
        mask: Factor of each entry of the attention (B, h, d, d), or None.
        qkv_weight, qkv_bias, temperature, proj_weight, proj_bias: Parameters of the attention.
        gamma: LayerScale (C), or None.

    Returns:
        M (B, C, C) and c (B, C): gamma * XCA is Xc M^T + c.
    """
    B, C = mean.shape
    h = len(temperature)
    dtype = mean.dtype
    qkv_weight, temperature, proj_weight, proj_bias = (
        p.to(dtype) for p in (qkv_weight, temperature, proj_weight, proj_bias))
    means = F.linear(mean, qkv_weight, None if qkv_bias is None else qkv_bias.to(dtype))  # of q, k and v: (B, 3C)
    weight_qk, weight_v = qkv_weight[:2 * C], qkv_weight[2 * C:]
    product = weight_qk @ gram  # (B, 2C, C)
    squares = (product * weight_qk).sum(-1) + num_tokens * means[:, :2 * C].square()  # lengths of the rows of Q and K
    inverse = squares.clamp_min(1e-24).rsqrt()  # eps 1e-12 of the l2 norm
    mean_q, mean_k, mean_v = means.view(B, 3, h, C // h).unbind(1)  # (B, h, d)
    inverse_q, inverse_k = inverse.view(B, 2, h, C // h).unbind(1)
    logits = product[:, :C].unflatten(1, (h, -1)) @ weight_qk[C:].unflatten(0, (h, -1)).mT  # (B, h, d, d)
    logits = logits + num_tokens * mean_q.unsqueeze(-1) * mean_k.unsqueeze(-2)
    attn = (logits * (temperature * inverse_q.unsqueeze(-1) * inverse_k.unsqueeze(-2))).softmax(-1)
    if mask is not None:
        attn = attn * mask
    matrix = proj_weight @ (attn @ weight_v.unflatten(0, (h, -1))).flatten(1, 2)  # (B, C, C)
    offset = F.linear((attn @ mean_v.unsqueeze(-1)).flatten(1), proj_weight, proj_bias)
    if gamma is None:
        return matrix, offset
    return matrix * gamma.to(dtype).unsqueeze(-1), offset * gamma.to(dtype)


def _unit(x: Tensor) -> Tensor:
    """Scale the last axis, the tokens, to length 1.

    The length is taken in float32 at least: over tens of thousands of tokens the squares overflow
    float16, and the eps of 1e-12 is zero in it.
    """
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=pieces.statistics_dtype(x))
    return (x / length.clamp_min(1e-12)).to(x.dtype)


class _Gram(torch.autograd.Function):
    """Xc^T Xc of (B, N, C) of a half type, summed in float32."""

    @staticmethod
    def forward(ctx, centred):
        ctx.save_for_backward(centred)
        B, _, C = centred.shape
        return pieces.add_gram(centred.new_zeros(B, C, C, dtype=pieces.statistics_dtype(centred)), centred, centred)

    @staticmethod
    def backward(ctx, grad):
        centred, = ctx.saved_tensors
        return centred @ (grad + grad.mT).to(centred.dtype)


class _GramResidual(torch.autograd.Function):
    """x + keep * gamma * XCA(norm(x)); keeps x and its moments for the backward, nothing else of the size of x."""

    @staticmethod
    def forward(ctx, x, keep, mask, eps, norm_weight, norm_bias, *weights):
        ctx.eps, ctx.dtype = eps, pieces.compute_dtype(x)
        norm = norm_weight, norm_bias, eps
        with pieces.no_autocast(x):
            mean, gram, centred = _moments(x, norm, ctx.dtype, keep)
            matrix, offset = mix(mean, gram, x.shape[1], mask, *weights)
            out = pieces.like(x, keep)
            for b, n in pieces.cut(x, keep):
                part = centred if centred is not None else _centre(x[b, n], norm, mean[b], ctx.dtype)[0]
                part = pieces.linear(part, matrix[b], offset[b])
                pieces.add_branch(x[b, n], part, None if keep is None else keep[b], out[b, n])
        ctx.save_for_backward(x, keep, mask, norm_weight, norm_bias, mean, gram, *weights)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, keep, mask, norm_weight, norm_bias, mean, gram, *weights = ctx.saved_tensors
        N = x.shape[1]
        norm = norm_weight, norm_bias, ctx.eps
        grad = grad.contiguous()
        with pieces.no_autocast(x):
            grad_matrix, grad_offset = torch.zeros_like(gram), torch.zeros_like(mean)
            parts = pieces.cut(x, keep)
            for b, n in parts:
                centred = _centre(x[b, n], norm, mean[b], ctx.dtype)
                part = grad[b, n] if keep is None else grad[b, n] * keep[b].to(x.dtype).view(-1, 1, 1)
                grad_offset[b] += part.sum(1, dtype=mean.dtype)
                part = part.to(ctx.dtype)
                pieces.add_gram(grad_matrix[b], part, centred[0])
            with torch.enable_grad():  # the C x C matrices again, which are small beside the tokens
                leaves = [None if t is None else t.detach().requires_grad_() for t in (mean, gram, *weights)]
                matrix, offset = mix(*leaves[:2], N, mask, *leaves[2:])
                found = iter(torch.autograd.grad((matrix, offset), [t for t in leaves if t is not None],
                                                 (grad_matrix, grad_offset)))
            grad_mean, grad_gram, *grad_weights = (None if t is None else next(found) for t in leaves)
            symmetric = grad_gram + grad_gram.mT
            # what reaches a token through the mean, less what centring takes away
            row = (grad_mean - (grad_offset.unsqueeze(1) @ matrix).squeeze(1)) / N
            matrix, scale = matrix.detach(), None
            if ctx.dtype == torch.float16:  # a gradient of N tokens' products may be too small for it
                scale = pieces.power_of_two(symmetric, (1, 2))
                symmetric, row = symmetric / scale, row / scale.squeeze(2)
            grad_x = pieces.like(grad, keep)
            grad_norm = pieces.zeros_like(norm_weight, norm_bias)
            for b, n in parts:
                if len(parts) > 1:  # one piece is still at hand
                    centred = _centre(x[b, n], norm, mean[b], ctx.dtype)
                    part = grad[b, n] if keep is None else grad[b, n] * keep[b].to(x.dtype).view(-1, 1, 1)
                    part = part.to(ctx.dtype)
                tokens, mean_x, rstd_x = centred
                inner = pieces.linear(tokens, symmetric[b], row[b])  # the matrix is symmetric
                if scale is not None:
                    inner = inner * scale[b]
                inner = inner + pieces.linear_backward(part, tokens, matrix[b])
                inner, *sums = pieces.normalise_backward(inner.to(x.dtype), x[b, n], mean_x, rstd_x, norm_weight,
                                                         norm_bias)
                pieces.add_to(grad_norm, sums)
                torch.add(inner, grad[b, n], out=grad_x[b, n])
        return grad_x, None, None, None, *grad_norm, *grad_weights


def _centre(x, norm, mean, dtype):
    """Normed tokens of a piece less their mean, in ``dtype``, and what the backward of the norm takes."""
    x, mean_x, rstd_x = pieces.normalise(x, *norm)
    return x.to(mean.dtype).sub_(mean.unsqueeze(1)).to(dtype), mean_x, rstd_x


def _moments(x, norm, dtype, keep):
    """Mean (B, C) and Gram matrix (B, C, C) of the normed tokens; also the centred ones if they are one piece.

    Pieces are centred by their own means; what lies between these is added at the end (Chan, Golub and LeVeque 1979),
    so that every difference is taken once and exactly.
    """
    B, N, C = x.shape
    mean = x.new_zeros(B, C, dtype=pieces.statistics_dtype(x))
    gram = x.new_zeros(B, C, C, dtype=mean.dtype)
    parts, means = pieces.cut(x, keep), {}
    for b, n in parts:
        piece = pieces.normalise(x[b, n], *norm)[0].to(mean.dtype)
        own = piece.mean(1)
        centred = piece.sub_(own.unsqueeze(1)).to(dtype)
        pieces.add_gram(gram[b], centred, centred)
        if len(parts) == 1:
            mean[b] = own
            return mean, gram, centred
        means.setdefault(b.start, []).append((n.stop - n.start, own))
    for b, found in means.items():
        counts = torch.tensor([count for count, _ in found], dtype=mean.dtype).unsqueeze(1)
        found = torch.cat([own for _, own in found])  # (pieces, C)
        mean[b] = (found * counts).sum(0) / N
        between = (found - mean[b]) * counts.sqrt()
        gram[b].addmm_(between.t(), between)
    return mean, gram, None


def fuse_affine(norm, linear):
    """Take weight and bias of a norm into the linear layer behind it."""
    shift = linear.weight @ norm.bias
    if linear.bias is None:
        linear.bias = torch.nn.Parameter(shift, False)
    else:
        linear.bias += shift
    linear.weight *= norm.weight


def fuse_scale(layer, gamma):
    """Take a factor of the output channels into a linear layer or convolution."""
    layer.weight *= gamma.view(-1, *[1] * (layer.weight.dim() - 1))
    layer.bias *= gamma
