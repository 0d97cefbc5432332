"""Principal components of token maps, against a singular value decomposition."""
import pytest
import torch

from helpers.models import build, randomise, relative_error
from xcit_dense import principal_components
from xcit_dense.predict import components


def by_decomposition(tokens, count):
    """Scores of tokens (N, C) on their first directions, and the shares of the variance."""
    centred = tokens.double() - tokens.double().mean(0)
    _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
    return centred @ directions[:count].mT, singular[:count].square() / singular.square().sum()


@pytest.mark.parametrize('chunk_floats', (components.CHUNK_FLOATS, 100, 1))
def test_components_are_those_of_a_decomposition(chunk_floats, monkeypatch):
    monkeypatch.setattr(components, 'CHUNK_FLOATS', chunk_floats)
    maps = torch.randn(2, 6, 5, 9) * torch.tensor([9., 1, 7, 3, 5, 2]).view(-1, 1, 1) + 40
    found, shares = principal_components(maps)
    assert found.shape == (2, 3, 5, 9) and found.dtype == torch.float32 and shares.shape == (2, 3)
    for i in range(2):
        wanted, wanted_shares = by_decomposition(maps[i].flatten(1).mT, 3)
        got = found[i].flatten(1).mT
        signs = (got * wanted).sum(0).sign()
        assert relative_error(got, (wanted * signs).float()) < 1e-6
        assert torch.allclose(shares[i], wanted_shares, rtol=1e-9, atol=0)
    assert (shares.diff(dim=1) < 0).all()


def test_the_sign_is_that_of_the_largest_weight():
    line = torch.linspace(-1, 1, 12).view(3, 4)
    maps = torch.stack((0.2 * line, -2 * line, line))[None]
    for sign in (1, -1):
        found, shares = principal_components(sign * maps, count=1)
        # the second channel has the largest weight, and it counts positive
        assert torch.allclose(found[0, 0] / found[0, 0].abs().max(), -sign * line, atol=1e-6)
        assert shares[0, 0] == pytest.approx(1)


def test_tokens_that_are_alike_have_components_of_zero():
    for size in ((1, 1), (4, 3)):
        found, shares = principal_components(torch.full((1, 4, *size), 3.))
        assert not found.any() and not shares.any() and found.shape == (1, 3, *size)


def test_half_types_and_layouts_change_nothing():
    maps = torch.randn(1, 8, 6, 7).half()
    wanted, _ = principal_components(maps.float())
    assert torch.equal(principal_components(maps)[0], wanted)
    assert torch.equal(principal_components(maps.contiguous(memory_format=torch.channels_last))[0], wanted)
    assert not principal_components(maps.float().requires_grad_())[0].requires_grad


@pytest.mark.parametrize('shape, count', (((6, 5, 9), 3), ((1, 2, 5, 9), 3), ((1, 4, 5, 9), 0)))
def test_what_it_does_not_take(shape, count):
    with pytest.raises(ValueError, match=str(shape[-1])):
        principal_components(torch.randn(shape), count)


@pytest.mark.parametrize('patch_size', (8, 16))
def test_token_maps_are_what_levels_are_made_of(patch_size):
    model = randomise(build(patch_size)).eval()
    plain = build(patch_size, out_strides=None, out_indices=(0, 2)).eval()
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if name in plain.state_dict()})
    x = torch.randn(1, 3, 70, 90)
    ran = []
    model.blocks[3].register_forward_hook(lambda *_: ran.append(True))
    with torch.no_grad():
        for got, wanted in zip(model.token_maps(x, (0, 2)), plain(x), strict=True):
            assert torch.equal(got, wanted)
        assert not ran  # no block behind the last
        levels = model.pyramid(model.token_maps(x, model.out_indices))
        assert all(map(torch.equal, levels, model(x)))
    for blocks in ((), (2, 0), (0, 4), (-1, ), 1):
        with pytest.raises(ValueError, match='blocks .* 0 to 3'):
            model.token_maps(x, blocks)
