"""Principal components of token maps, which show what a model without a class token distinguishes."""
import torch
from torch import Tensor

#: How many float64 numbers are processed at a time.
CHUNK_FLOATS = 2**24


@torch.no_grad()
def principal_components(maps: Tensor, count: int = 3):
    """Return the first principal components of the tokens of each image, those that explain most first.

    They are computed in float64 from the C x C covariance, so that time is linear in the number of tokens. Signs are
    chosen so that the largest channel weight of a component is positive: the same image and model always give the same
    result.

    Args:
        maps: Token maps (B, C, h, w), such as the outputs of `xcit_dense.XCiT` or of its ``token_maps``.
        count: How many components, at most C.

    Returns:
        The components (B, count, h, w), float32 with mean 0, and the share (B, count) of the variance that each
        explains, float64; 0 if all tokens are equal.

    Raises:
        ValueError: ``maps`` has another shape, or fewer channels than ``count``.
    """
    if maps.dim() != 4 or not 1 <= count <= maps.shape[1]:
        raise ValueError(f'principal_components needs maps (B, C, h, w) and 1 <= count <= C, got maps '
                         f'{tuple(maps.shape)} and count={count}')
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
