"""Maps lie over the image where their patches are, in colours that follow one rule."""
import cv2
import numpy as np
import pytest

from xcit_dense.predict import attention_pictures
from xcit_dense.predict.attention_pictures import WIDTH, Panel, colours_of, draw


def hot(shape, place, *channels):
    values = np.zeros((*shape, *channels), np.float32)
    values[place] = 1
    return values


def lit(colours):
    """First and last row and column of what is brighter than the rest."""
    rows, columns = np.nonzero(colours.max(2) > 100)
    return rows.min(), rows.max(), columns.min(), columns.max()


@pytest.fixture
def whole_range(monkeypatch):
    """Colours from the lowest to the highest value: a hot token is no outlier to cut."""
    monkeypatch.setattr(attention_pictures, 'LOW', 0)
    monkeypatch.setattr(attention_pictures, 'HIGH', 100)


@pytest.mark.parametrize('channels', ((), (3, )))
@pytest.mark.parametrize('place', ((0, 0), (2, 1), (1, 5), (3, 6)))
@pytest.mark.parametrize('size', ((64, 112), (57, 100)))  # of whole patches of 16, and not
def test_a_token_lies_over_its_patch(size, place, channels, whole_range):
    image = np.zeros((*size, 3), np.uint8)
    panel = Panel('', hot((4, 7), place, *channels), [side / 16 for side in size])
    top, bottom, left, right = lit(colours_of(panel, image))
    wanted = [min(16 * place[0] + 15, size[0] - 1), min(16 * place[1] + 15, size[1] - 1)]
    assert (top, left) == (16 * place[0], 16 * place[1]) and [bottom, right] == wanted


@pytest.mark.parametrize('place, wanted', (
    ((0, 0), (0, 7, 0, 7)), ((2, 1), (24, 39, 8, 23)), ((3, 6), (40, 63, 88, 111))))
def test_a_map_may_begin_ahead_of_the_image(place, wanted, whole_range):
    """By half a cell; the last cells reach to the end."""
    panel = Panel('', hot((4, 7), place), (4, 7), 0.5)
    assert lit(colours_of(panel, np.zeros((64, 112, 3), np.uint8))) == wanted


@pytest.mark.parametrize('place', ((0, 0), (80, 40), (99, 149), (20, 130)))
def test_a_token_smaller_than_a_pixel_lies_there_too(place, whole_range):
    """An image of 797 x 1199 in 40 x 60 pixels."""
    panel = Panel('', hot((100, 150), place), (797 / 8, 1199 / 8))
    colours = colours_of(panel, np.zeros((40, 60, 3), np.uint8)).max(2)
    row, column = np.unravel_index(colours.argmax(), colours.shape)
    assert abs(row - place[0] / 100 * 40) <= 1 and abs(column - place[1] / 150 * 60) <= 1


def test_a_map_that_ends_early_leaves_white():
    """Levels that are pooled lose odd rows and columns."""
    panel = Panel('', np.random.rand(2, 3).astype(np.float32), (2.5, 3.5))
    colours = colours_of(panel, np.zeros((50, 70, 3), np.uint8))
    assert (colours[40:] == 255).all() and (colours[:, 60:] == 255).all()
    assert (colours[:40, :60].min(2) < 255).all()


def test_colours_go_from_percentile_to_percentile():
    values = np.linspace(5, 6, 1001, dtype=np.float32)[:, None].repeat(2, 1)
    values[0], values[-1] = -1000, 1000
    grey = colours_of(Panel('', values[..., None].repeat(3, 2), (1001, 2)), np.zeros((1001, 2, 3), np.uint8))[:, 0, 0]
    assert (grey[:10] == 0).all() and (grey[991:] == 255).all() and grey[500] in (127, 128)
    assert (np.diff(grey.astype(int)) >= 0).all() and 0 < grey[30] < grey[900] < 255
    assert '1st' in attention_pictures.RULE and '99th' in attention_pictures.RULE


@pytest.mark.parametrize('channels', ((), (3, )))
@pytest.mark.filterwarnings('error')  # of 0 / 0
def test_a_flat_map_is_dark(channels):
    values = np.full((2, 2, *channels), 7, np.float32)
    assert colours_of(Panel('', values, (2, 2)), np.zeros((8, 8, 3), np.uint8)).max() < 10


def test_the_image_shows_through_an_overlay():
    image = np.zeros((8, 8, 3), np.uint8)
    image[:, 4:] = 255
    values = np.zeros((1, 1), np.float32)
    assert np.array_equal(colours_of(Panel('', None), image), image)
    over = colours_of(Panel('', values, (1, 1), over_image=True), image).astype(int)
    assert (over[:, 4:] > over[:, :4] + 80).all()
    assert np.ptp(colours_of(Panel('', values, (1, 1)), image), axis=(0, 1)).max() == 0


@pytest.mark.parametrize('size', ((30, 45), (900, 600), (4, 3000), (3000, 4), (1, 1)))
def test_pictures_of_any_shape_are_at_most_so_wide(size, tmp_path):
    """Each panel has its drawing, pixel by pixel."""
    image = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    panel = Panel('block 12: 33 + 22 + 11%', np.random.rand(2, 3), (2, 3))
    draw(image, [[Panel('image'), panel], [None, panel, panel, panel]], 'What it is.', tmp_path / 'a.part')
    picture = cv2.imread(str(tmp_path / 'a.part'))[..., ::-1]
    assert picture.shape[1] <= WIDTH and picture.shape[0] < 1300
    height, width = attention_pictures._panel_size(image, 4)
    left = attention_pictures.GAP + (max(width, attention_pictures.COLUMN) - width) // 2
    wanted = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    assert np.array_equal(picture[attention_pictures.TITLE:][:height, left:left + width], wanted)
    assert (picture[:attention_pictures.TITLE].min() < 100)  # the titles
