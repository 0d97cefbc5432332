"""The C x C part of XCA: its gradient by hand, beside autograd's of the same matrices."""
import pytest
import torch

from xcit_dense.models.fast.mix import mix, mix_backward

C, N, HEADS = 24, 50, 4


def _inputs(samples, without):
    """Return mean, Gram matrix, mask and parameters of random tokens, None for those named in ``without``."""
    def draw(*shape):
        return torch.randn(shape, dtype=torch.float64).requires_grad_()

    tokens = torch.randn(samples, N, C, dtype=torch.float64)
    mean, centred = tokens.mean(1), tokens - tokens.mean(1, keepdim=True)
    shapes = dict(qkv_weight=(3 * C, C), qkv_bias=(3 * C, ), temperature=(HEADS, 1, 1), proj_weight=(C, C),
                  proj_bias=(C, ), gamma=(C, ))
    parameters = [None if name in without else draw(*shape) for name, shape in shapes.items()]
    mask = None if 'mask' in without else torch.randint(0, 3, (samples, HEADS, C // HEADS, C // HEADS)).double()
    return mean.requires_grad_(), (centred.mT @ centred).requires_grad_(), mask, parameters


@pytest.mark.parametrize('without', ((), ('mask', 'qkv_bias'), ('mask', 'gamma')), ids=lambda names: ' '.join(names))
@pytest.mark.parametrize('samples', (1, 3))
def test_gradients_are_those_of_autograd(samples, without):
    """With one query and one key too short to be divided by their length, whose lengths have no gradient."""
    torch.manual_seed(0)
    mean, gram, mask, parameters = _inputs(samples, without)
    with torch.no_grad():
        for values in parameters[:1 if parameters[1] is None else 2]:
            values[[3, C + 5]] *= 1e-15
    matrix, offset, kept = mix(mean, gram, N, mask, HEADS, *parameters)
    grads = torch.randn_like(matrix), torch.randn_like(offset)
    leaves = [mean, gram, *(p for p in parameters if p is not None)]
    wanted = torch.autograd.grad((matrix, offset), leaves, grads)
    with torch.no_grad():
        grad_mean, grad_gram, found = mix_backward(*grads, kept, mean, N, mask, HEADS, *parameters)
    assert [p is None for p in found] == [p is None for p in parameters]
    found = [grad_mean, grad_gram + grad_gram.mT, *(p for p in found if p is not None)]
    wanted = [wanted[0], wanted[1] + wanted[1].mT, *wanted[2:]]  # a Gram matrix is symmetric, so only this sum counts
    for ours, autograds in zip(found, wanted, strict=True):
        assert ours.shape == autograds.shape
        torch.testing.assert_close(ours, autograds, rtol=1e-9, atol=1e-9 * autograds.abs().max().item())
