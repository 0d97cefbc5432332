"""The C x C part of XCA in Gram form: from the moments of an image's tokens to its 1x1 convolution, and the gradient.

Per head, queries and keys stand side by side: W (2d, C) are their rows of the projection and m (2d) their means. Their
covariances are S = W G W^T + N m m^T: squared lengths on the diagonal, Q K^T in a corner. So the forward takes
3 C^3 multiply-adds per image, and its gradient 4 C^3, all of it from L (2d, 2d), twice the gradient of S:
G receives W^T L W / 2, W receives L W G, and m receives N L m.

Batches stand inside: (rows, B, columns), so that all images share one product.
"""
import warnings
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import ops
from .residual import scaled_rows_backward


class CancelsError(Exception):
    """The Gram form would lose digits on these tokens."""


class Weights(NamedTuple):
    """The parameters of an attention of h heads of d channels as `mix` needs them, in float32 at least."""
    qkv: Tensor  # (3C, C)
    bias: Tensor | None  # (3C)
    heads: Tensor  # rows of queries and keys, side by side in a head: (h, 2d, C)
    temperature: Tensor  # (h, 1, 1) or (1, 1, 1)
    proj: Tensor  # times LayerScale (C, C)
    proj_bias: Tensor  # times LayerScale (C)


class Kept(NamedTuple):
    """What `mix` keeps for `mix_backward`, for heads of d channels."""
    means: Tensor  # of queries, keys and values: (B, 3C)
    product: Tensor  # W G: (h, 2d, B, C)
    inverse: Tensor  # reciprocal lengths of the rows of Q and K: (h, 2d, B)
    cosine: Tensor  # products of the rows of Q and K over their lengths: (h, d, B, d)
    attn: Tensor  # their softmax: (h, d, B, d)


def prepare(num_heads: int, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias, gamma=None) -> Weights:
    """Return the parameters of an attention as `Weights`; LayerScale (C) None stands for ones."""
    dtype = ops.statistics_dtype(qkv_weight)
    if gamma is not None:
        proj_weight, proj_bias = gamma.unsqueeze(1) * proj_weight, gamma * proj_bias
    qkv_weight, qkv_bias, temperature, proj_weight, proj_bias = ops.converted(
        dtype, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias)
    heads = qkv_weight.unflatten(0, (3, num_heads, -1))
    return Weights(qkv_weight, qkv_bias, torch.cat((heads[0], heads[1]), 1), temperature, proj_weight, proj_bias)


def mix(mean, gram, num_tokens, weights, compute_dtype, guard=False):
    """Compute the 1x1 convolution that XCA is for an image, from the tokens' first and second moments.

    Args:
        mean: Mean of the tokens (B, C).
        gram: Sum over the tokens of centred token times centred token (B, C, C).
        weights: As `prepare` returns them.
        compute_dtype: Type in which the tokens are multiplied.
        guard: Whether to check if digits are lost.

    Returns:
        M (B, C, C) and c (B, C): gamma * XCA is Xc M^T + c; and what `mix_backward` needs. If `cancels` is True, it
        raises `CancelsError` on a CPU; on other devices, a warning follows.
    """
    (B, C), h = mean.shape, len(weights.heads)
    means = F.linear(mean, weights.qkv, weights.bias)
    # the Gram matrix is symmetric
    product = ops.small_product(weights.heads.flatten(0, 1), gram.flatten(0, 1), compute_dtype).view(h, -1, B, C)
    covariance = ops.product(product.flatten(1, 2), weights.heads.mT).view(h, -1, B, product.shape[1])
    if guard:
        lost = cancels(covariance.diagonal(dim1=1, dim2=3), gram, weights.heads)
        if lost.device.type != 'cpu':  # reading it now would block the device
            warn_later(lost.to('cpu', non_blocking=True))
        elif lost:
            raise CancelsError
    attn, cosine, inverse, mean_out = _attend(covariance, means, weights.temperature, num_tokens)
    matrix = ops.small_product(weights.proj, _values(attn, weights).t(), compute_dtype)
    matrix = matrix.view(C, B, C).transpose(0, 1)
    offset = F.linear(mean_out, weights.proj, weights.proj_bias)
    return matrix, offset, Kept(means, product, inverse, cosine, attn)


def mix_backward(grad_matrix, grad_offset, kept, mean, num_tokens, weights, projection, compute_dtype):
    """Return the gradients of `mix`.

    Args:
        grad_matrix, grad_offset: Gradients of M (B, C, C) and c (B, C).
        kept: What `mix` returned.
        projection: Weight and bias of the projection, and LayerScale if it is part of the weights.
        The others: As in `mix`.

    Returns:
        That of ``mean`` (B, C), that of ``gram`` plus its transpose (B, C, C), and a list of those of the parameters
        that `prepare` takes.
    """
    (B, C), h = mean.shape, len(weights.heads)

    # through the projection
    grad_matrix = grad_matrix.transpose(0, 1).reshape(C, B * C)
    grad_proj = ops.small_product(grad_matrix, _values(kept.attn, weights), compute_dtype)
    grad_values = ops.small_product(weights.proj.t(), grad_matrix.t(), compute_dtype).view(h, -1, C)  # (h, d B, C)

    # through attention times values
    grad_attn = ops.product(grad_values, _value_rows(weights).mT).view_as(kept.attn)
    grad_weight_v = ops.product(kept.attn.flatten(1, 2).mT, grad_values)  # (h, d, C)

    # through the cosines, to covariances and means, and from there to weights and moments
    slopes, grad_means, grad_temperature, mean_out = _attend_backward(
        grad_attn, grad_offset @ weights.proj, kept, weights.temperature, num_tokens)
    grad_proj = grad_proj.addmm_(grad_offset.t(), mean_out), grad_offset.sum(0)
    if len(projection) > 2:
        grad_proj = scaled_rows_backward(*grad_proj, *projection)
    slopes = slopes.flatten(1, 2)  # (h, 2d B, 2d)
    grad_weight_qk = ops.product(slopes.mT, kept.product.flatten(1, 2))  # (h, 2d, C); L is symmetric
    symmetric = ops.product(slopes, weights.heads).view(2 * C, B * C)
    symmetric = ops.small_product(weights.heads.flatten(0, 1).t(), symmetric.t(), compute_dtype)
    symmetric = symmetric.view(C, B, C).transpose(0, 1)
    grad_qkv = torch.cat((*grad_weight_qk.unflatten(1, (2, -1)).unbind(1), grad_weight_v)).flatten(0, 1)
    grad_qkv.addmm_(grad_means.t(), mean)
    return grad_means @ weights.qkv, symmetric, [grad_qkv, grad_means.sum(0), grad_temperature, *grad_proj]


def _attend(covariance, means, temperature, num_tokens):
    """Return attention, cosines and reciprocal lengths as in `Kept`, and attention times the mean values (B, C).

    ``covariance`` (h, 2d, B, 2d) is that of the centred tokens.
    """
    if kernels := ops.kernels_for(covariance):
        return kernels.attend(covariance, means, temperature, num_tokens)
    h, d = len(covariance), covariance.shape[1] // 2
    means_qk, mean_v = _means_by_head(means, h)
    squares = covariance.diagonal(dim1=1, dim2=3) + num_tokens * means_qk.square()  # (h, B, 2d)
    inverse = squares.clamp_min(1e-24).rsqrt()  # the square of the l2 norm's eps
    logits = covariance[:, :d, :, d:] + num_tokens * _column(means_qk[..., :d]) * means_qk[..., d:].unsqueeze(1)
    cosine = logits * (_column(inverse[..., :d]) * inverse[..., d:].unsqueeze(1))
    attn = (cosine * temperature.unsqueeze(-1)).softmax(-1)
    return attn, cosine, inverse, _mean_out(attn, mean_v)


def _attend_backward(grad_attn, grad_mean_out, kept, temperature, num_tokens):
    """Return L (h, 2d, B, 2d), the gradients of means (B, 3C) and temperature, and again the mean output (B, C)."""
    if kernels := ops.kernels_for(grad_attn):
        return kernels.attend_backward(grad_attn, grad_mean_out, kept.means, kept.attn, kept.cosine, kept.inverse,
                                       temperature, num_tokens)
    h, d, B, _ = grad_attn.shape
    means_qk, mean_v = _means_by_head(kept.means, h)
    attn, cosine, inverse = kept.attn, kept.cosine, kept.inverse
    grad_mean_out = grad_mean_out.t().view(h, d, B, 1)
    grad_mean_v = (attn * grad_mean_out).sum(1)  # (h, B, d)
    grad_attn = grad_attn + grad_mean_out * mean_v.unsqueeze(1)
    grad_cosine = attn * (grad_attn - (grad_attn * attn).sum(-1, keepdim=True))
    shares = grad_cosine * cosine
    grad_temperature = shares.sum((1, 2, 3)).view(h, 1, 1).sum_to_size(temperature.shape)
    shares = torch.cat((shares.sum(-1).mT, shares.sum(1)), -1) * temperature  # (h, B, 2d)
    is_clamped = inverse > 0.999e12
    slopes = grad_cosine.new_zeros(h, 2 * d, B, 2 * d)
    slopes.diagonal(dim1=1, dim2=3).copy_(torch.where(is_clamped, 0, -shares * inverse.square()))
    corner = grad_cosine * (temperature.unsqueeze(-1) * _column(inverse[..., :d]) * inverse[..., d:].unsqueeze(1))
    slopes[:, :d, :, d:] = corner
    slopes[:, d:, :, :d] = corner.transpose(1, 3)
    grad_means_qk = num_tokens * (slopes * means_qk.unsqueeze(1)).sum(-1)  # (h, 2d, B)
    grad_means = torch.cat((*grad_means_qk.mT.unflatten(-1, (2, d)).unbind(-2), grad_mean_v))  # (3h, B, d)
    return slopes, grad_means.transpose(0, 1).flatten(1), grad_temperature, _mean_out(attn, mean_v)


def _means_by_head(means, num_heads):
    """Return the means (B, 3C) of queries and keys, side by side in a head, and of values: (h, B, 2d), (h, B, d)."""
    means = means.unflatten(1, (3, num_heads, -1)).permute(1, 2, 0, 3)  # (3, h, B, d)
    return torch.cat((means[0], means[1]), -1), means[2]


def _column(rows):
    """Turn (h, B, d) into (h, d, B, 1)."""
    return rows.mT.unsqueeze(-1)


def _mean_out(attn, mean_v):
    return (attn * mean_v.unsqueeze(1)).sum(-1).flatten(0, 1).t()


def _value_rows(weights):
    """Return the rows of the values (h, d, C)."""
    return weights.qkv.unflatten(0, (3, len(weights.heads), -1))[2]


def _values(attn, weights):
    """Return attention times the rows of the values: (C, B C)."""
    return ops.product(attn.flatten(1, 2), _value_rows(weights)).view(weights.qkv.shape[1], -1)


def warn_later(lost: Tensor):
    """At the next call, which is many steps later, warn if ``lost``, a bool on its way to the CPU, is True."""
    if _on_their_way and _on_their_way.pop():
        warnings.warn(
            'the attention of XCiT lost digits to tokens that vary most in directions that its queries or keys ignore: '
            'in float32, outputs may be off by more than 1e-6 and gradients by more than 1e-5. To avoid it: '
            'xcit_dense.set_fast(False), or XCIT_DENSE_FAST=0 in the environment', stacklevel=2)
    _on_their_way.append(lost)


_on_their_way = []


def cancels(squares: Tensor, gram: Tensor, weight: Tensor) -> Tensor:
    """Whether squared lengths (h, B, I), the diagonals of W G W^T, lost digits to the entries of G: one bool.

    Their relative error is the rounding of G's entries, 6e-8 of its norm, times the squared length of the weights
    divided by the square. The measured error is 1e-2 of that, as roundings average out; it depends on the processor.
    From a ratio of 500, in the mean over queries and keys, outputs may be off by more than 1e-6 and gradients by more
    than 1e-5. Tokens that vary equally in all directions have a ratio of sqrt(C).
    """
    rows = torch.linalg.vector_norm(weight, dim=2).square().unsqueeze(1)
    largest = torch.linalg.vector_norm(gram, dim=(1, 2)).unsqueeze(1) * rows
    return (largest / squares.abs().clamp_min(1e-24)).mean() > 500
