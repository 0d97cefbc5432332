"""What the attention tool writes of an image: arrays that are the model's own, and a picture in the same places."""
import cv2
import numpy as np
import pytest
import torch

from helpers.models import build, relative_error
from xcit_dense import attention_maps, principal_components
from xcit_dense.data.folders import find_images
from xcit_dense.draw import pictures
from xcit_dense.draw.pictures import WIDTH, Panel, colours_of, draw_panels
from xcit_dense.errors import ConfigError
from xcit_dense.predict.attention import Attention, Picture, read_resized
from xcit_dense.predict.files import predict_files
from xcit_dense.predict.weight_file import normalised, open_model


@pytest.fixture
def image(tmp_path):
    """An image file of 75 x 51 pixels, which no patch divides."""
    path = tmp_path / 'images/deep/a.png'
    path.parent.mkdir(parents=True)
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 255, (51, 75, 3), dtype=np.uint8))
    return path


def show(file, image, out, **options):
    """Run over an image; give its arrays and its picture, RGB."""
    assert ': 1 picture and ' in predict_files(Attention(file, **options), *find_images(image.parent.parent), out)
    with np.load(out / 'deep/a.npz') as arrays:
        return dict(arrays), cv2.imread(str(out / 'deep/a.png'))[..., ::-1]


def seen(image, size=None):
    return normalised(read_resized(image, size).seen)


@pytest.mark.parametrize('kind, patch, blocks, size, input_size', (
    ('p8', 8, None, None, [51, 75]), ('p8', 8, [2], None, [51, 75]), ('dino', 16, None, 102, [102, 150])))
def test_attention_of_a_classifier(kind, patch, blocks, size, input_size, files, image, tmp_path):
    file = files / f'{kind}.pth'
    arrays, picture = show(file, image, tmp_path / 'out', blocks=blocks, size=size)
    wanted = attention_maps(open_model(file).model, seen(image, size))[0].numpy()
    wanted = wanted[[block - 1 for block in blocks or (1, 2)]]
    assert arrays['attention'].dtype == np.float32 and arrays['attention'].shape == wanted.shape
    assert wanted.shape[1:] == (4, *(-(-side // patch) for side in input_size))
    assert np.abs(arrays['attention'] - wanted).max() < 1e-5 * wanted.max()
    assert arrays['blocks'].tolist() == (blocks or [1, 2]) and arrays['patch'] == patch
    assert arrays['image_size'].tolist() == [51, 75] and arrays['input_size'].tolist() == input_size
    assert 1400 < picture.shape[1] <= 1600


@pytest.mark.parametrize('sides, size, wanted', (
    ((51, 75), 20, (20, 29)), ((51, 75), None, (51, 75)), ((1, 300), 2, (2, 600)), ((600, 1), 1, (600, 1))))
def test_the_shorter_side_is_resized(sides, size, wanted, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, (*sides, 3), np.uint8)
    cv2.imwrite(str(tmp_path / 'a.png'), image[..., ::-1])
    read = read_resized(tmp_path / 'a.png', size)
    method = cv2.INTER_AREA if size and size < min(sides) else cv2.INTER_CUBIC
    assert (read.original == image).all() and (read.seen == cv2.resize(image, wanted[::-1], None, 0, 0, method)).all()


def test_pictures_are_no_long_strips(files):
    shown, maps = Attention(files / 'p8.pth'), torch.rand(1, 2, 8, 7, 12)
    shown.model.attention_maps = lambda x: maps
    _, rows, _ = shown(Picture(*[np.zeros((50, 90, 3), np.uint8)] * 2))
    assert [len(row) for row in rows] == [3, 4, 4, 4, 4]
    assert len({panel.title for row in rows for panel in row}) == 3 + 16
    assert {(*panel.cells, panel.ahead) for panel in sum(rows, [])[1:]} == {(50 / 8, 90 / 8, 0.5)}  # half a patch
    assert rows[-1][-1].title == 'block 2, head 8' and np.array_equal(rows[-1][-1].values, maps[0, 1, -1])
    assert [panel.over_image for panel in rows[0]] == [False, True, True]
    assert all(np.allclose(panel.values, one.mean(0)) for panel, one in zip(rows[0][1:], maps[0], strict=True))


def test_components_and_levels_of_a_dense_model(files, image, tmp_path):
    file = files / 'dense.pth'
    arrays, model = show(file, image, tmp_path / 'out')[0], open_model(file).model
    with torch.no_grad():
        maps, levels = model.token_maps(seen(image), (0, 1, 2, 3)), model(seen(image))
    assert arrays['blocks'].tolist() == [1, 2, 3, 4]
    rows = [row[1:] for row in Attention(file)(read_resized(image))[1]]
    assert [(panel.cells, panel.ahead) for panel in rows[0]] == [([51 / 16, 75 / 16], 0.5)] * 4
    for row in rows[1:]:  # half a patch of 16 pixels
        assert [(panel.cells, panel.ahead) for panel in row] == [
            ([51 / stride, 75 / stride], 8 / stride) for stride in (4, 8, 16, 32)]
    shares = [round(100 * float(share)) for share in arrays['explained'][1]]
    assert rows[0][1].title == 'block 2: {} + {} + {}%'.format(*shares)
    for i, tokens in enumerate(maps):
        wanted, shares = principal_components(tokens)
        assert np.abs(arrays['components'][i] - wanted[0].permute(1, 2, 0).numpy()).max() < 1e-3
        assert np.allclose(arrays['explained'][i], shares[0].numpy(), atol=1e-5)
    for stride, level in zip((4, 8, 16, 32), levels, strict=True):
        norm = level[0].norm(dim=0).numpy()
        assert arrays[f'level_{stride}_norm'].shape == norm.shape == tuple(level.shape[2:])
        assert np.allclose(arrays[f'level_{stride}_norm'], norm, rtol=1e-4, atol=1e-4)
        assert arrays[f'level_{stride}_components'].shape == (*norm.shape, 3)
        shares = principal_components(level)[1][0].numpy()
        assert np.allclose(arrays[f'level_{stride}_explained'], shares, atol=1e-3)


@pytest.mark.parametrize('kind, options, shows, blocks', (
    ('dense', dict(show='levels'), {'level'}, []), ('dense', dict(show='components'), {'components'}, [1, 2, 3, 4]),
    ('dense', dict(blocks=[3, 1, 3]), {'components', 'level'}, [1, 3]), ('backbone', {}, {'components'}, [4, 6, 8, 12]),
    ('p8', dict(show='components'), {'components'}, [4, 6, 8, 12]),
    ('p8', dict(show='components', blocks=[12, 5]), {'components'}, [5, 12])))
def test_what_is_shown_can_be_chosen(kind, options, shows, blocks, files, image, tmp_path):
    arrays, _ = show(files / f'{kind}.pth', image, tmp_path / 'out', **options)
    assert {name.partition('_')[0] for name in arrays} & {'attention', 'components', 'level'} == shows
    assert arrays.get('blocks', np.array([])).tolist() == blocks and len(arrays.get('components', ())) == len(blocks)


@pytest.mark.parametrize('kind, options, words', (
    ('dense', dict(show='attention'), 'no attention.*components or levels'),
    ('p8', dict(show='levels'), 'no levels.*attention or components'),
    ('backbone', dict(show='levels'), 'no levels.*components'),
    ('p8', dict(blocks=[1, 3]), '1 to 2.*class-attention.*3'), ('dense', dict(blocks=[0]), '1 to 4.*0'),
    ('p8', dict(show='components', blocks=[13]), '1 to 12.*XCA.*13'),
    ('dense', dict(show='levels', blocks=[1]), 'levels have no blocks')))
def test_what_a_model_cannot_show(kind, options, words, files):
    with pytest.raises(ConfigError, match=words):
        Attention(files / f'{kind}.pth', **options)


def lit_by(place, shape, channels, picture, *panel):
    """First and last row and column of what is brighter than the rest, of a map in which one cell differs."""
    values = np.zeros((*shape, *channels), np.float32)
    values[place] = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, 'LOW', 0)
        patch.setattr(pictures, 'HIGH', 100)  # a hot token is no outlier to cut
        colours = colours_of(Panel('', values, *panel), np.zeros((*picture, 3), np.uint8)).max(2)
    rows, columns = np.nonzero(colours > 0.9 * colours.max())
    return rows.min(), rows.max(), columns.min(), columns.max()


@pytest.mark.parametrize('channels', ((), (3, )))
@pytest.mark.parametrize('place, wanted, ahead', (
    ((0, 0), (0, 15, 0, 15), (0, 7, 0, 7)), ((2, 1), (32, 47, 16, 31), (24, 39, 8, 23)),
    ((3, 6), (48, 63, 96, 111), (40, 63, 88, 111))))
def test_a_token_lies_over_its_patch(place, wanted, ahead, channels):
    """If that is not whole, too. Of a map that begins half a cell ahead, the last cells reach to the end."""
    for height, width in ((64, 112), (57, 100)):
        top, bottom, left, right = wanted
        assert lit_by(place, (4, 7), channels, (height, width), (height / 16, width / 16)) == (
            top, min(bottom, height - 1), left, min(right, width - 1))
    assert lit_by(place, (4, 7), channels, (64, 112), (4, 7), 0.5) == ahead


def test_a_token_smaller_than_a_pixel_lies_there_too():
    for place, wanted in (((80, 40), (32, 16)), ((99, 149), (39, 59))):
        top, bottom, left, right = lit_by(place, (100, 150), (), (40, 60), (797 / 8, 1199 / 8))
        assert np.abs(np.subtract([top, left], wanted)).max() <= 1 and (bottom, right) == (top, left)


@pytest.mark.filterwarnings('error')  # of 0 / 0
def test_colours_go_from_percentile_to_percentile():
    """Each channel by itself; a flat map is dark."""
    values = np.linspace(5, 6, 1001, dtype=np.float32)[:, None].repeat(2, 1)
    values[0], values[-1] = -1000, 1000
    found = colours_of(Panel('', values[..., None] * [1, 2, 5], (1001, 2)), np.zeros((1001, 2, 3), np.uint8))
    grey = found[:, 0, 0]
    assert (found == grey[:, None, None]).all()
    assert (grey[:10] == 0).all() and (grey[991:] == 255).all() and grey[500] in (127, 128)
    assert (np.diff(grey.astype(int)) >= 0).all() and 0 < grey[30] < grey[900] < 255
    for channels in ((), (3, )):
        flat = Panel('', np.full((2, 2, *channels), 7, np.float32), (2, 2))
        assert colours_of(flat, np.zeros((8, 8, 3), np.uint8)).max() < 10


def test_the_image_shows_through_an_overlay_and_white_where_a_map_ends_early():
    panel = Panel('', np.random.rand(2, 3).astype(np.float32), (2.5, 3.5))  # pooled levels lose odd rows and columns
    colours = colours_of(panel, np.zeros((50, 70, 3), np.uint8))
    assert (colours[40:] == 255).all() and (colours[:, 60:] == 255).all() and (colours[:40, :60].min(2) < 255).all()
    image, values = np.zeros((8, 8, 3), np.uint8), np.zeros((1, 1), np.float32)
    image[:, 4:] = 255
    assert np.array_equal(colours_of(Panel('', None), image), image)
    over = colours_of(Panel('', values, (1, 1), over_image=True), image).astype(int)
    assert (np.abs(over[:, 4:] - over[:, :4] - 0.35 * 255) < 1).all()
    assert np.ptp(colours_of(Panel('', values, (1, 1)), image), axis=(0, 1)).max() == 0


@pytest.mark.parametrize('size', ((900, 600), (4, 3000), (3000, 4), (1, 1)))
def test_pictures_of_any_shape_are_at_most_so_wide(size, tmp_path):
    image = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    panel = Panel('block 12: 33 + 22 + 11%', np.random.rand(2, 3), (2, 3))
    draw_panels(image, [[Panel('image'), panel], [None, panel, panel, panel]], 'What it is.', tmp_path / 'a.part')
    picture = cv2.imread(str(tmp_path / 'a.part'))[..., ::-1]
    assert picture.shape[1] <= WIDTH and picture.shape[0] < 1300
    height, width = pictures._panel_size(image, 4)
    left = pictures.GAP + (max(width, pictures.COLUMN) - width) // 2
    wanted = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    assert np.array_equal(picture[pictures.TITLE:][:height, left:left + width], wanted)
    assert picture[:pictures.TITLE].min() < 100  # the titles


def test_components_are_those_of_a_decomposition():
    """In any layout and type of float."""
    maps = (torch.randn(2, 6, 5, 9) * torch.tensor([9., 1, 7, 3, 5, 2]).view(-1, 1, 1) + 40).half().float()
    found, shares = principal_components(maps.requires_grad_())
    assert found.shape == (2, 3, 5, 9) and found.dtype == torch.float32 and shares.shape == (2, 3)
    for tokens, got, share in zip(maps.detach().flatten(2).mT, found.flatten(2).mT, shares, strict=True):
        centred = tokens.double() - tokens.double().mean(0)
        _, singular, directions = torch.linalg.svd(centred, full_matrices=False)
        wanted = centred @ directions[:3].mT
        assert relative_error(got, (wanted * (got * wanted).sum(0).sign()).float()) < 1e-6
        assert torch.allclose(share, (singular.square() / singular.square().sum())[:3], rtol=1e-9, atol=0)
    assert not found.requires_grad
    for other in (maps.half(), maps.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(principal_components(other)[0], found)


def test_the_sign_is_that_of_the_largest_weight():
    """Tokens that are alike have components of zero."""
    line = torch.linspace(-1, 1, 12).view(3, 4)
    for sign in (1, -1):
        found, shares = principal_components(sign * torch.stack((0.2 * line, -2 * line, line))[None], count=1)
        # the second channel has the largest weight, and it counts positive
        assert torch.allclose(found[0, 0] / found[0, 0].abs().max(), -sign * line, atol=1e-6)
        assert shares[0, 0] == pytest.approx(1)
    for size in ((1, 1), (4, 3)):
        found, shares = principal_components(torch.full((1, 4, *size), 3.))
        assert not found.any() and not shares.any() and found.shape == (1, 3, *size)
    for shape, count in (((6, 5, 9), 3), ((1, 2, 5, 9), 3), ((1, 4, 5, 9), 0)):
        with pytest.raises(ValueError, match=str(shape[-1])):
            principal_components(torch.randn(shape), count)


def test_token_maps_of_blocks_that_are_not_there():
    for blocks in ((), (2, 0), (0, 4), (-1, ), 1):
        with pytest.raises(ValueError, match='blocks .* 0 to 3'):
            build(16).token_maps(torch.randn(1, 3, 70, 90), blocks)
