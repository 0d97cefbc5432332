r"""Class attention without keys and values: both are linear in the tokens, and there is only one query.

Per head, the scores are q (Wk x + bk) = (Wk^T q) x + const, and the softmax ignores the constant; the weighted sum of
values is Wv (sum of weighted x) + bv. So N tokens cost 2 N C h multiply-adds and nothing is kept of them, while the
projection alone takes 3 N C^2 and keeps 3 N C. These are ordinary operations, so compilers and second derivatives work.
"""
import torch
from torch import Tensor

from .untouched import weight_and_bias


def weights(attn, x: Tensor) -> Tensor:
    """Return the attention (B, h, 1 + N) of the class token to normed tokens (B, 1 + N, C)."""
    q_weight, k_weight, _ = attn.qkv.weight.chunk(3)
    q = torch.nn.functional.linear(x[:, 0], q_weight, _bias(attn, 0)).unflatten(1, (attn.num_heads, -1))  # (B, h, d)
    q = q * q.shape[-1]**-0.5
    k_weight = k_weight.unflatten(0, (attn.num_heads, -1))  # (h, d, C)
    scores = torch.einsum('bhd,hdc->bhc', q, k_weight) @ x.mT
    return scores.softmax(dim=-1)


def gather(attn, x: Tensor) -> Tensor:
    """Map normed tokens (B, 1 + N, C) as a `ClassAttention` does: (B, 1, C)."""
    v_weight = attn.qkv.weight.chunk(3)[2].unflatten(0, (attn.num_heads, -1))  # (h, d, C)
    y = torch.einsum('bhc,hdc->bhd', weights(attn, x) @ x, v_weight).flatten(1)  # (B, C)
    bias = _bias(attn, 2)
    return attn.proj((y if bias is None else y + bias).unsqueeze(1))


def parameters_of(attn):
    """Return the parameters that are read here; `proj` is called as a layer."""
    return weight_and_bias(attn.qkv)


def _bias(attn, third):
    bias = attn.qkv.bias
    return None if bias is None else bias.chunk(3)[third]
