"""The feed-forward network of an XCiT block."""
import torch
from torch import Tensor, nn

from . import pieces
from .xca import fuse_affine, fuse_scale


class FFN(nn.Module):
    """C -> hidden -> C with exact GELU, on every token.

    Args:
        embed_dims: Channels C.
        hidden_dims: Channels between the two linear layers.
    """

    def __init__(self, embed_dims: int, hidden_dims: int):
        super().__init__()
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dims, embed_dims)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, C) to tokens (B, N, C)."""
        return self.fc2(self.act(self.fc1(x)))

    def residual(self, x: Tensor, norm: nn.LayerNorm, gamma, keep) -> Tensor:
        """Return x + keep * gamma * FFN(norm(x)); arguments as in `xcit_dense.xca.XCA.residual`."""
        if pieces.is_traced():
            return pieces.add_scaled(x, self(norm(x)), gamma, keep)
        weights = self.fc1.weight, self.fc1.bias, self.fc2.weight, self.fc2.bias, gamma
        return _FFNResidual.apply(x, keep, norm.eps, torch.is_grad_enabled(), norm.weight, norm.bias, *weights)

    def fuse(self, norm: nn.LayerNorm, gamma: Tensor):
        """Take the affine part of the norm before and LayerScale behind into the linear layers, for inference."""
        fuse_affine(norm, self.fc1)
        fuse_scale(self.fc2, gamma)


class _FFNResidual(torch.autograd.Function):
    """x + keep * gamma * FFN(norm(x)); keeps x and the hidden layer before its GELU for the backward."""

    @staticmethod
    def forward(ctx, x, keep, eps, train, norm_weight, norm_bias, weight1, bias1, weight2, bias2, gamma):
        ctx.eps, ctx.dtype = eps, pieces.compute_dtype(x)
        train = train and any(ctx.needs_input_grad)
        hidden = x.new_empty(*x.shape[:2], len(weight1), dtype=ctx.dtype) if train else None
        out = pieces.like(x, keep)
        with pieces.no_autocast(x):
            weight, bias = _scale(weight2, bias2, gamma)
            for b, n in pieces.cut(x, keep):
                part = pieces.normalise(x[b, n], norm_weight, norm_bias, eps)[0].to(ctx.dtype)
                part = pieces.linear(part, weight1, bias1)
                if train:
                    hidden, part = _store(hidden, part, (b, n)), nn.functional.gelu(part)
                else:
                    part = torch.ops.aten.gelu_(part)
                part = pieces.linear(part, weight, bias)
                pieces.add_branch(x[b, n], part, None if keep is None else keep[b], out[b, n])
        ctx.save_for_backward(x, keep, norm_weight, norm_bias, weight1, bias1, weight2, bias2, gamma, hidden)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        x, keep, norm_weight, norm_bias, weight1, bias1, weight2, bias2, gamma, hidden = ctx.saved_tensors
        grad = grad.contiguous()
        grad_x = pieces.like(grad, keep)
        with pieces.no_autocast(x):
            scaled, _ = _scale(weight2, bias2, gamma)
            grad_norm = pieces.zeros_like(norm_weight, norm_bias)
            grad1, grad_bias1, grad2, grad_bias2 = pieces.zeros_like(weight1, bias1, weight2.t(), bias2)
            for b, n in pieces.cut(x, keep):
                normed, mean, rstd = pieces.normalise(x[b, n], norm_weight, norm_bias, ctx.eps)
                before, part = hidden[b, n], grad[b, n]
                if keep is not None:
                    part = part * keep[b].to(x.dtype).view(-1, 1, 1)
                grad_bias2 += part.sum((0, 1), dtype=grad_bias2.dtype)
                part, after = part.to(ctx.dtype), nn.functional.gelu(before)
                _add_gram(grad2, after, part)
                inner = torch.ops.aten.gelu_backward(pieces.linear_backward(part, after, scaled), before)
                grad_bias1 += inner.sum((0, 1), dtype=grad_bias1.dtype)
                normed = normed.to(ctx.dtype)
                _add_gram(grad1, inner, normed)
                inner = pieces.linear_backward(inner, normed, weight1).to(x.dtype)
                inner, *sums = pieces.normalise_backward(inner, x[b, n], mean, rstd, norm_weight, norm_bias)
                pieces.add_to(grad_norm, sums)
                torch.add(inner, grad[b, n], out=grad_x[b, n])
            grad2, grad_gamma = grad2.t(), None
            if gamma is not None:
                grad_gamma = (grad2 * weight2).sum(1) + grad_bias2 * bias2
                grad2, grad_bias2 = grad2 * gamma.unsqueeze(1), grad_bias2 * gamma
        return grad_x, None, None, None, *grad_norm, grad1, grad_bias1, grad2, grad_bias2, grad_gamma


def _store(whole, part, where):
    """Put a part of a tensor where it belongs; one that is the whole takes its place."""
    if part.shape == whole.shape:
        return part
    whole[where] = part
    return whole


def _scale(weight, bias, gamma):
    return (weight, bias) if gamma is None else (weight * gamma.unsqueeze(1), bias * gamma)


def _add_gram(total, a, b):
    pieces.add_gram(total.unsqueeze(0), a.reshape(1, -1, a.shape[-1]), b.reshape(1, -1, b.shape[-1]))
