"""The C x C part of XCA in Gram form: from the moments of an image's tokens to its 1x1 convolution, and the gradient.

The forward takes 3 C^3 multiply-adds and the gradient 4 C^3 per image. The gradient is written by hand, because
autograd would take 6 C^3: with P = Wqk G kept, dWqk = dP G consists of products of P with d x d blocks.
"""
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from . import ops


class CancelsError(Exception):
    """The Gram form would lose digits on these tokens."""


class Kept(NamedTuple):
    """What `mix` keeps for `mix_backward`, for heads of d channels."""
    means: Tensor  # of queries, keys and values: (B, 3C)
    product: Tensor  # Wqk G: (B, 2C, C)
    inverse: Tensor  # reciprocal lengths of the rows of Q and K: (B, 2C)
    logits: Tensor  # Q K^T: (B, h, d, d)
    attn: Tensor  # their softmax: (B, h, d, d)


def mix(mean, gram, num_tokens, mask, num_heads, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias, gamma,
        guard=False):
    """Compute the 1x1 convolution that XCA is for an image, from the tokens' first and second moments.

    Args:
        mean: Mean of the tokens (B, C).
        gram: Sum over the tokens of centred token times centred token (B, C, C).
        num_tokens: N.
        mask: Factor of each entry of the attention (B, h, d, d), or None.
        num_heads: h.
        qkv_weight, qkv_bias, temperature, proj_weight, proj_bias: Parameters of the attention.
        gamma: LayerScale (C), or None.
        guard: Whether to check if digits are lost.

    Returns:
        M (B, C, C) and c (B, C): gamma * XCA is Xc M^T + c; and what `mix_backward` needs.

    Raises:
        CancelsError: `cancels` is True.
    """
    C, h, dtype = mean.shape[1], num_heads, mean.dtype
    qkv_weight, qkv_bias, temperature, proj_weight, proj_bias, gamma = ops.converted(
        dtype, qkv_weight, qkv_bias, temperature, proj_weight, proj_bias, gamma)
    means = F.linear(mean, qkv_weight, qkv_bias)
    weight_qk, weight_v = qkv_weight[:2 * C], qkv_weight[2 * C:]
    product = weight_qk @ gram
    squares = (product * weight_qk).sum(-1)
    if guard and cancels(squares, gram, weight_qk):
        raise CancelsError
    squares = squares + num_tokens * means[:, :2 * C].square()  # lengths of the rows of Q and K
    inverse = squares.clamp_min(_EPS).rsqrt()
    mean_q, mean_k, mean_v = _heads(means, 3, h)
    inverse_q, inverse_k = _heads(inverse, 2, h)
    logits = product[:, :C].unflatten(1, (h, -1)) @ weight_qk[C:].unflatten(0, (h, -1)).mT
    logits = logits + num_tokens * mean_q.unsqueeze(-1) * mean_k.unsqueeze(-2)
    attn = (logits * (temperature * inverse_q.unsqueeze(-1) * inverse_k.unsqueeze(-2))).softmax(-1)
    kept = Kept(means, product, inverse, logits, attn)
    attn = attn if mask is None else attn * mask
    proj_weight, proj_bias = ops.scaled_rows(proj_weight, proj_bias, gamma)
    matrix = proj_weight @ (attn @ weight_v.unflatten(0, (h, -1))).flatten(1, 2)
    offset = F.linear((attn @ mean_v.unsqueeze(-1)).flatten(1), proj_weight, proj_bias)
    return matrix, offset, kept


def mix_backward(grad_matrix, grad_offset, kept, mean, num_tokens, mask, num_heads, qkv_weight, qkv_bias, temperature,
                 proj_weight, proj_bias, gamma):
    """Return the gradients of `mix`.

    Args:
        grad_matrix, grad_offset: Gradients of M (B, C, C) and c (B, C).
        kept: What `mix` returned.
        The others: As in `mix`.

    Returns:
        Those of ``mean`` (B, C) and ``gram`` (B, C, C), and a list of those of the parameters, None for those that
        are None.
    """
    C, h, dtype = mean.shape[1], num_heads, mean.dtype
    means, product, inverse, logits, attn = kept
    qkv_weight, temperature, proj_weight, proj_bias, gamma = ops.converted(
        dtype, qkv_weight, temperature, proj_weight, proj_bias, gamma)
    weight_qk, weight_v = qkv_weight[:2 * C], qkv_weight[2 * C:].unflatten(0, (h, -1))
    mean_q, mean_k, mean_v = _heads(means, 3, h)
    inverse_q, inverse_k = _heads(inverse, 2, h)
    inverse_q, inverse_k = inverse_q.unsqueeze(-1), inverse_k.unsqueeze(-2)
    masked = attn if mask is None else attn * mask

    # through the projection
    scaled, _ = ops.scaled_rows(proj_weight, proj_bias, gamma)
    values = (masked @ weight_v).flatten(1, 2)
    mean_out = (masked @ mean_v.unsqueeze(-1)).flatten(1)
    grad_proj = (grad_matrix @ values.mT).sum(0).addmm_(grad_offset.t(), mean_out)
    grad_proj, grad_proj_bias, grad_gamma = ops.scaled_rows_backward(grad_proj, grad_offset.sum(0), proj_weight,
                                                                     proj_bias, gamma)
    grad_values = (scaled.t() @ grad_matrix).unflatten(1, (h, -1))  # (B, h, d, C)
    grad_mean_out = (grad_offset @ scaled).unflatten(1, (h, -1))  # (B, h, d)

    # through attention times values
    grad_attn = grad_values @ weight_v.mT + grad_mean_out.unsqueeze(-1) * mean_v.unsqueeze(-2)
    grad_weight_v = (masked.mT @ grad_values).sum(0).flatten(0, 1)
    grad_mean_v = (masked.mT @ grad_mean_out.unsqueeze(-1)).squeeze(-1)

    # through the softmax and the lengths: its argument is temperature * inverse_q * logits * inverse_k
    grad_attn = grad_attn if mask is None else grad_attn * mask
    grad_cosine = attn * (grad_attn - (grad_attn * attn).sum(-1, keepdim=True))
    grad_temperature = (grad_cosine * (logits * inverse_q * inverse_k)).sum_to_size(temperature.shape)
    grad_cosine = grad_cosine * temperature
    grad_logits = grad_cosine * inverse_q * inverse_k
    shares = grad_cosine * logits
    grad_inverse = torch.cat(((shares * inverse_k).sum(-1).flatten(1), (shares * inverse_q).sum(-2).flatten(1)), 1)
    is_clamped = inverse > 0.999 * _EPS ** -0.5
    slopes = torch.where(is_clamped, 0, grad_inverse * inverse ** 3)  # -2 times the gradients of the squares

    # through the logits and squared lengths, to means, weights and moments
    grad_means = torch.cat(((num_tokens * (grad_logits @ mean_k.unsqueeze(-1))).flatten(1),
                            (num_tokens * (grad_logits.mT @ mean_q.unsqueeze(-1))).flatten(1),
                            grad_mean_v.flatten(1)), 1)
    grad_means[:, :2 * C] -= num_tokens * slopes * means[:, :2 * C]
    query_rows, key_rows = product[:, :C].unflatten(1, (h, -1)), product[:, C:].unflatten(1, (h, -1))
    grad_weight_qk = torch.cat(((grad_logits @ key_rows).flatten(1, 2), (grad_logits.mT @ query_rows).flatten(1, 2)), 1)
    grad_weight_qk = (grad_weight_qk - slopes.unsqueeze(-1) * product).sum(0)
    grad_product = -0.5 * slopes.unsqueeze(-1) * weight_qk
    grad_product[:, :C] += (grad_logits @ weight_qk[C:].unflatten(0, (h, -1))).flatten(1, 2)
    grad_gram = weight_qk.t() @ grad_product
    grad_qkv = torch.cat((grad_weight_qk, grad_weight_v)).addmm_(grad_means.t(), mean)
    grad_qkv_bias = None if qkv_bias is None else grad_means.sum(0)
    return grad_means @ qkv_weight, grad_gram, [grad_qkv, grad_qkv_bias, grad_temperature, grad_proj, grad_proj_bias,
                                                grad_gamma]


_EPS = 1e-24  # square of that of the l2 norm


def _heads(rows, count, num_heads):
    """Cut (B, count * C) into ``count`` tensors (B, h, d)."""
    return rows.unflatten(1, (count, num_heads, -1)).unbind(1)


def cancels(squares: Tensor, gram: Tensor, weight: Tensor) -> bool:
    """Whether squared lengths (B, I), the diagonals of ``weight`` G ``weight``^T, lost digits to the entries of G.

    Their relative error is the rounding of G's entries, 6e-8 of its norm, times the squared length of the weights
    divided by the square. The measured error is 1e-2 of that, as roundings average out; it depends on the processor.
    From a ratio of 500, in the mean over queries and keys, outputs may be off by more than 1e-6 and gradients by more
    than 1e-5. Tokens that vary equally in all directions have a ratio of sqrt(C).
    """
    largest = torch.linalg.vector_norm(gram, dim=(1, 2)).unsqueeze(1) * torch.linalg.vector_norm(weight, dim=1).square()
    return bool((largest / squares.abs().clamp_min(1e-24)).mean() > 500)
