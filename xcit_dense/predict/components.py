"""Principal components of token maps, which show what a model without class token tells apart."""
import torch
from torch import Tensor

#: Numbers that are computed with at a time, in float64.
CHUNK_FLOATS = 2**24


@torch.no_grad()
def principal_components(maps: Tensor, count: int = 3):
    """Return the first principal components of the tokens of each image, in the order of what they explain.

    Computed in float64 from the C x C covariance, so that time is linear in the tokens. The sign of a component is the
    one that makes the largest weight of a channel positive: the same image and model always give the same.

    Args:
        maps: Token maps (B, C, h, w), such as `xcit_dense.XCiT` gives, or its ``token_maps``.
        count: How many, at most C.

    Returns:
        The components (B, count, h, w), float32 with mean 0, and the share (B, count) of the variance that each
        explains, float64; 0 where all tokens are alike.

    Raises:
        ValueError: ``maps`` has another shape, or fewer channels than components are wanted.
    """
    if maps.dim() != 4 or not 1 <= count <= maps.shape[1]:
        raise ValueError(f'principal_components takes maps (B, C, h, w) with at least {count} channels, at least one, '
                         f'got {tuple(maps.shape)}')
    found = [_components(tokens, count) for tokens in maps.flatten(2).mT]
    components, shares = (torch.stack(part) for part in zip(*found, strict=True))
    return components.unflatten(2, maps.shape[2:]), shares


def _components(tokens, count):
    """Return the components (count, N) of tokens (N, C), and their shares of the variance."""
    chunks = tokens.split(max(1, CHUNK_FLOATS // tokens.shape[1]))
    mean = sum(chunk.sum(0, dtype=torch.float64) for chunk in chunks) / len(tokens)
    covariance = 0
    for chunk in chunks:
        centred = chunk.double() - mean
        covariance = covariance + centred.mT @ centred
    variances, vectors = torch.linalg.eigh(covariance)  # ascending
    variances, vectors = variances.clamp_min(0).flip(0), vectors.flip(1)[:, :count]
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    vectors = vectors * largest.sign()
    parts = [((chunk.double() - mean) @ vectors).float() for chunk in chunks]
    total = variances.sum()
    return torch.cat(parts).mT, variances[:count] / total if total > 0 else torch.zeros_like(variances[:count])
