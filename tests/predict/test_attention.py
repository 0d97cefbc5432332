"""What the attention tool writes of an image: arrays that are the model's own, and a picture in the same places."""
import cv2
import numpy as np
import pytest
import torch

from helpers.models import build, prefixed, randomise
from xcit_dense import XCiT, XCiTClassifier, attention_maps, principal_components
from xcit_dense.data.datasets import find_images
from xcit_dense.errors import CheckpointError, ConfigError
from xcit_dense.predict import attention_pictures
from xcit_dense.predict.attention import Attention, Picture, PictureReader
from xcit_dense.predict.files import predict_files
from xcit_dense.predict.opening import normalised


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    """By kind: the path of a weight file, and its model."""
    folder = tmp_path_factory.mktemp('files')
    torch.manual_seed(0)
    plain = dict(norm_cfg=dict(type='BN'))
    made = dict(classifier=XCiTClassifier('nano_12_p8', num_classes=7, **plain),
                dino=XCiTClassifier('nano_12_p16', num_classes=0, **plain), dense=build(16),
                backbone=XCiT('nano_12_p16', out_strides=None, **plain))
    found = {}
    for kind, model in made.items():
        state = randomise(model.eval()).state_dict()
        content = dict(state_dict=prefixed(state, 'backbone.')) if kind == 'dense' else dict(model=state)
        torch.save(content, folder / f'{kind}.pth')
        found[kind] = folder / f'{kind}.pth', model
    return found


@pytest.fixture
def image(tmp_path):
    """An image file of 75 x 51 pixels, which no patch divides."""
    path = tmp_path / 'images/deep/a.png'
    path.parent.mkdir(parents=True)
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 255, (51, 75, 3), dtype=np.uint8))
    return path


def show(file, image, out, **options):
    """Run over an image; give its arrays and its picture, RGB."""
    root = image.parent.parent
    words = predict_files(Attention(file, **options), *find_images(root), out)
    assert words.startswith('1 picture and ')
    with np.load(out / 'deep/a.npz') as arrays:
        return dict(arrays), cv2.imread(str(out / 'deep/a.png'))[..., ::-1]


def seen(image, size=None):
    return normalised(PictureReader(size).read(image).seen)


@pytest.mark.parametrize('kind, patch, blocks', (('classifier', 8, None), ('dino', 16, None), ('classifier', 8, [2])))
def test_attention_of_a_classifier(kind, patch, blocks, files, image, tmp_path):
    file, model = files[kind]
    arrays, picture = show(file, image, tmp_path / 'out', blocks=blocks)
    wanted = attention_maps(model, seen(image))[0].numpy()
    wanted = wanted[[block - 1 for block in blocks or (1, 2)]]
    assert arrays['attention'].dtype == np.float32 and arrays['attention'].shape == wanted.shape
    assert wanted.shape[1:] == (4, -(-51 // patch), -(-75 // patch))
    assert np.abs(arrays['attention'] - wanted).max() < 1e-5 * wanted.max()
    assert arrays['blocks'].tolist() == (blocks or [1, 2]) and arrays['patch'] == patch
    assert arrays['image_size'].tolist() == arrays['input_size'].tolist() == [51, 75]
    assert 1400 < picture.shape[1] <= 1600


@pytest.mark.parametrize('size, heads, columns', (
    ((50, 90), 8, 4), ((90, 50), 8, 8), ((50, 90), 16, 8), ((90, 50), 4, 4)))
def test_pictures_are_no_long_strips(size, heads, columns, files):
    shown = Attention(files['classifier'][0])
    shown.model.attention_maps = lambda x: torch.rand(1, 2, heads, 7, 12)
    _, rows, _ = shown(Picture(*[np.zeros((*size, 3), np.uint8)] * 2))
    assert [len(row) for row in rows] == [3] + [columns] * (2 * heads // columns)
    titles = [panel.title for row in rows for panel in row]
    assert len(set(titles)) == 3 + 2 * heads and titles[-1] == f'block 2, head {heads}'


def test_components_and_levels_of_a_dense_model(files, image, tmp_path):
    file, model = files['dense']
    arrays, _ = show(file, image, tmp_path / 'out')
    with torch.no_grad():
        maps, levels = model.token_maps(seen(image), (0, 1, 2, 3)), model(seen(image))
    assert arrays['blocks'].tolist() == [1, 2, 3, 4]
    for i, tokens in enumerate(maps):
        wanted, shares = principal_components(tokens)
        assert np.abs(arrays['components'][i] - wanted[0].permute(1, 2, 0).numpy()).max() < 1e-3
        assert np.allclose(arrays['explained'][i], shares[0].numpy(), atol=1e-5)
    for stride, level in zip((4, 8, 16, 32), levels, strict=True):
        norm = level[0].norm(dim=0).numpy()
        assert arrays[f'level_{stride}_norm'].shape == norm.shape == tuple(level.shape[2:])
        assert np.allclose(arrays[f'level_{stride}_norm'], norm, rtol=1e-4, atol=1e-4)
        assert arrays[f'level_{stride}_components'].shape == (*norm.shape, 3)
        assert arrays[f'level_{stride}_explained'].shape == (3, )


@pytest.mark.parametrize('kind, options, names', (
    ('dense', dict(show='levels'), {'level_4_norm', 'level_32_components'}),
    ('dense', dict(show='components'), {'components', 'explained', 'blocks'}),
    ('dense', dict(blocks=[3, 1, 3]), {'components', 'level_4_norm'}),
    ('backbone', {}, {'components'}), ('classifier', dict(show='components'), {'components'}),
    ('classifier', dict(show='components', blocks=[12]), {'components'})))
def test_what_is_shown_can_be_chosen(kind, options, names, files, image, tmp_path):
    arrays, _ = show(files[kind][0], image, tmp_path / 'out', **options)
    assert names <= set(arrays) and ('attention' in arrays) is False
    assert ('components' in arrays) == ('components' in names)
    assert any(name.startswith('level') for name in arrays) == any(name.startswith('level') for name in names)
    if 'components' in names:
        wanted = sorted(set(options.get('blocks', ()))) or ([1, 2, 3, 4] if kind == 'dense' else [4, 6, 8, 12])
        assert arrays['blocks'].tolist() == wanted and len(arrays['components']) == len(wanted)


@pytest.mark.parametrize('kind, options, words', (
    ('dense', dict(show='attention'), 'no class token.*components or levels'),
    ('backbone', dict(show='attention'), 'no class token'),
    ('classifier', dict(show='levels'), 'classifier.*pyramid.*attention or components'),
    ('backbone', dict(show='levels'), 'backbone.*pyramid.*components'),
    ('classifier', dict(blocks=[3]), '1 to 2.*class-attention.*3'), ('classifier', dict(blocks=[1, 0]), '1 to 2.*0'),
    ('classifier', dict(show='components', blocks=[13]), '1 to 12.*XCA.*13'),
    ('dense', dict(blocks=[5]), '1 to 4.*5'), ('dense', dict(show='levels', blocks=[1]), 'levels have no blocks')))
def test_what_a_model_cannot_show(kind, options, words, files):
    with pytest.raises(ConfigError, match=words):
        Attention(files[kind][0], **options)


def test_a_model_of_other_channels_shows_no_pictures(tmp_path):
    model = XCiTClassifier('nano_12_p16', in_channels=4, norm_cfg=dict(type='BN'))
    torch.save(dict(model=model.state_dict()), tmp_path / 'w.pth')
    with pytest.raises(CheckpointError, match='4 channels'):
        Attention(tmp_path / 'w.pth')


@pytest.mark.parametrize('size, wanted', ((20, (20, 29)), (102, (102, 150)), (51, (51, 75))))
def test_the_shorter_side_is_resized(size, wanted, files, image, tmp_path):
    arrays, _ = show(files['dino'][0], image, tmp_path / 'out', size=size)
    assert tuple(arrays['input_size']) == wanted and tuple(arrays['image_size']) == (51, 75)
    assert arrays['attention'].shape[2:] == tuple(-(-side // 16) for side in wanted)


def test_sides_stay_a_pixel(tmp_path):
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((1, 300, 3), np.uint8))
    assert PictureReader(2).read(tmp_path / 'a.png').seen.shape == (2, 600, 3)


@pytest.mark.parametrize('place', ((1, 8), (4, 1), (2, 6)))
def test_a_patch_that_differs_is_the_token_that_differs(place, files, image, tmp_path):
    """In a model whose tokens stay where they are: the grid is not transposed and not mirrored."""
    pixels = np.full((96, 160, 3), 128, np.uint8)
    pixels[16 * place[0]:16 * place[0] + 16, 16 * place[1]:16 * place[1] + 16] = 255, 0, 0
    cv2.imwrite(str(image), pixels)
    state = {name: value.clone() for name, value in files['dense'][1].state_dict().items()}
    for name, value in state.items():
        if 'gamma' in name or 'token_projection' in name:
            value.zero_()
    torch.save(dict(state_dict=prefixed(state, 'backbone.')), tmp_path / 'still.pth')
    arrays, _ = show(tmp_path / 'still.pth', image, tmp_path / 'out', show='components', blocks=[1])
    found = arrays['components'][0]
    differs = np.abs(found - np.median(found, axis=(0, 1))).sum(-1)[1:, 1:]  # the first ones see the border
    row, column = np.unravel_index(differs.argmax(), differs.shape)
    # a token is centred on the upper left corner of its patch
    assert (row + 1, column + 1) in {(place[0] + i, place[1] + j) for i in (0, 1) for j in (0, 1)}


@pytest.mark.parametrize('place', ((0, 9), (6, 0), (2, 6)))
def test_a_token_that_differs_lies_there_in_every_panel(place, files, image, tmp_path, monkeypatch):
    height, width = 51, 75
    maps = torch.rand(1, 2, 4, 7, 10) * 0.1
    maps[..., place[0], place[1]] = 1
    shown = Attention(files['classifier'][0])
    monkeypatch.setattr(shown.model, 'attention_maps', lambda x: maps)
    monkeypatch.setattr(attention_pictures, 'HIGH', 100)
    shown.write(PictureReader().read(image), 'a.png', tmp_path)
    picture = cv2.imread(str(tmp_path / 'a.png'))[..., ::-1].astype(int)
    wide = (1600 - 12) // 4 - 12
    high = round(height * wide / width)
    cells = [(0, 1), (0, 2)] + [(row, column) for row in (1, 2) for column in range(4)]
    for row, column in cells:
        top, left = 26 + row * (high + 26), 12 + column * (wide + 12)
        panel = picture[top:top + high, left:left + wide]
        # bright yellow, the end of the colours
        rows, columns = np.nonzero(panel[..., 0] + panel[..., 1] - panel[..., 2] > 250)
        y, x = np.median(rows) / high * height, np.median(columns) / wide * width
        # half a patch ahead, for it sees the pixels around the upper left corner of its patch
        assert (int((y + 4) // 8), int((x + 4) // 8)) == place, (row, column)
