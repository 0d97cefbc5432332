"""Contact sheets pixel by pixel: colours, places, and which way up."""
import numpy as np
import pytest
from PIL import Image, ImageDraw
from pycocotools import mask as mask_api

from xcit_dense.data.check.findings import Report
from xcit_dense.data.check.outputs import draw_contact_sheet
from xcit_dense.draw.classes import class_colours, draw_legend, font_of

#: A cell of the sheet takes a picture of this size as it is; before it is a gap.
WIDTH, HEIGHT, GAP = 480, 360, 12
#: A colour (RGB) of which no two channels are alike, so that another order shows.
PAPER = (20, 90, 200)
ALARM, BLACK = (176, 0, 32), (0, 0, 0)
NAMES = ('disc', 'square', 'star')
COLOURS = class_colours(NAMES)


def image(tmp_path, size=(WIDTH, HEIGHT), name='a.png', colour=PAPER):
    Image.new('RGB', size, colour).save(tmp_path / name)
    return str(tmp_path / name)


def thing(name, bbox, segmentation=None, marked=False):
    return dict(name=name, category_id=1, bbox=bbox, segmentation=segmentation, marked=marked)


def drawn(tmp_path, *things, size=(WIDTH, HEIGHT), **sample):
    """The pixels of a picture in the first cell of a sheet, and the legend below it."""
    report = Report('x', classes=[(name, 1, 1) for name in NAMES], samples=[
        dict(dict(file=image(tmp_path, size), captions=[], annotations=[*things]), **sample)])
    assert draw_contact_sheet(report, tmp_path / 'sheet.png') == 1
    sheet = np.asarray(Image.open(tmp_path / 'sheet.png')).astype(int)
    return sheet[GAP:GAP + HEIGHT, GAP:GAP + WIDTH], sheet[GAP + HEIGHT:]


def labelled(tmp_path, labels, ignored=(), first=0):
    Image.fromarray(np.asarray(labels, np.uint8)).save(tmp_path / 'map.png')
    return dict(map=str(tmp_path / 'map.png'), ignored=[*ignored], labels=[*range(first, first + len(NAMES))])


def mixed(colour, share, paper=PAPER):
    return share * np.array(colour) + (1 - share) * np.array(paper)


def same(pixels, colour, most=1.5):
    return bool((np.abs(pixels - np.array(colour)) <= most).all())


def test_masks_lie_where_they_are_in_the_colour_of_their_class(tmp_path):
    """Of a mask like an L, which no turn and no mirror leaves as it is."""
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[40:300, 50:80] = mask[260:300, 50:400] = 1
    inside, outside = np.zeros_like(mask, bool), np.ones_like(mask, bool)
    inside[60:296, 54:76] = inside[264:296, 54:396] = True  # without the edges, which are lines
    outside[20:306, 45:405] = False
    edges = np.flatnonzero(np.diff(mask.flatten('F'), prepend=0))
    for form in (dict(size=[HEIGHT, WIDTH], counts=np.diff(edges, prepend=0, append=mask.size).tolist()),
                 dict(size=[HEIGHT, WIDTH], counts=mask_api.encode(np.asfortranarray(mask))['counts'].decode()),
                 [[50, 40, 80, 40, 80, 260, 400, 260, 400, 300, 50, 300]]):
        pixels, _ = drawn(tmp_path, thing('square', [50, 40, 350, 260], form))
        assert same(pixels[inside], mixed(COLOURS[1], 110 / 255)), form
        assert same(pixels[outside], PAPER) and same(pixels[60:250, 90:390], PAPER)


@pytest.mark.parametrize('scale', (1, 2, 0.5))
def test_boxes_and_polygons_are_scaled_with_their_picture(tmp_path, scale):
    size = round(WIDTH / scale), round(HEIGHT / scale)
    box = [value / scale for value in (100, 60, 300, 200)]  # x, y, width, height
    pixels, _ = drawn(tmp_path, thing('star', box), size=size)
    for side in (pixels[60, 250:390], pixels[260, 110:390], pixels[70:250, 100], pixels[70:250, 400]):
        assert same(side, COLOURS[2])
    assert same(pixels[70:250, 110:390], PAPER) and same(pixels[270:, :], PAPER) and same(pixels[:, 410:], PAPER)
    assert same(drawn(tmp_path, thing('star', box, marked=True), size=size)[0][57, 250:390], BLACK)
    whole = thing('square', [0, 0, *size], [[0, 0, size[0], 0, *size, 0, size[1]]])
    _, legend = drawn(tmp_path, thing('star', box), whole, size=size)
    assert same(legend[33, GAP + 8], COLOURS[1])  # the largest one is drawn first
    polygon = [x / scale for x in (100, 200, 300, 200, 300, 340, 100, 340)]
    pixels, _ = drawn(tmp_path, thing('square', [10 / scale] * 2 + [5 / scale] * 2, [polygon]), size=size)
    assert same(pixels[210:330, 110:290], mixed(COLOURS[1], 110 / 255), 2)
    assert same(pixels[205:335, 100], COLOURS[1], 3) and same(pixels[200, 105:295], COLOURS[1], 3)
    assert same(pixels[345:355, 100:300], PAPER) and same(pixels[100:195, 200:300], PAPER)


@pytest.mark.parametrize('mark, place', ((1, (0, 0)), (6, (0, 1)), (7, (1, 1))))
def test_images_are_drawn_as_mmcv_reads_them(tmp_path, mark, place):
    """What was stored at the upper left comes where the EXIF mark asks for it; 5 to 8 exchange the sides."""
    stored = np.full((HEIGHT, WIDTH, 3), PAPER, np.uint8)
    stored[:HEIGHT // 2, :WIDTH // 2] = (200, 30, 60)
    exif = Image.Exif()
    exif[0x0112] = mark
    Image.fromarray(stored).save(tmp_path / 'a.jpg', exif=exif, quality=95)
    pixels, _ = drawn(tmp_path, file=str(tmp_path / 'a.jpg'))
    width = WIDTH if mark < 5 else HEIGHT * HEIGHT // WIDTH
    left = (WIDTH - width) // 2
    quarters = {(y, x): pixels[90 + 180 * y, left + width // 4 + width // 2 * x] for y in (0, 1) for x in (0, 1)}
    assert same(quarters.pop(place), (200, 30, 60), 12)
    assert all(same(pixel, PAPER, 12) for pixel in quarters.values())
    assert same(pixels[:, :left], (225, 225, 222)) and same(pixels[:, left + width:], (225, 225, 222))


def test_arrays_are_stretched_and_images_of_8_bits_are_not(tmp_path):
    assert same(drawn(tmp_path, file=image(tmp_path, name='a.tif'))[0], PAPER)
    np.save(tmp_path / 'a.npy', np.linspace(1000, 3000, WIDTH * HEIGHT).reshape(HEIGHT, WIDTH).astype(np.uint16))
    rows = drawn(tmp_path, file=str(tmp_path / 'a.npy'))[0].mean((1, 2))
    assert rows[0] < 5 and 120 < rows[HEIGHT // 2] < 135 and rows[-1] > 250


@pytest.mark.parametrize('first, ignored', ((0, [255]), (1, [0, 255]), (0, [2, 255])))
def test_label_maps_are_drawn_in_the_colours_of_their_classes(tmp_path, first, ignored):
    values = [0, 1, 2, 3, 254, 255]  # of a small map, which is spread over its image
    pixels, legend = drawn(tmp_path, **labelled(tmp_path, np.reshape(values, (2, 3)), ignored, first))
    for place, value in enumerate(values):
        y, x = HEIGHT // 2 * (place // 3), WIDTH // 3 * (place % 3)
        field = pixels[y:y + HEIGHT // 2, x:x + WIDTH // 3]
        if value not in ignored and value - first >= len(NAMES):
            assert (field == ALARM).all(2).any()
        else:
            assert same(field, mixed(BLACK, 0.75) if value in ignored else mixed(COLOURS[value - first], 0.6)), value
    for place, colour in enumerate(COLOURS):  # the legend names those that are there
        assert (legend == colour).all(2).any() == (place + first in values and place + first not in ignored)
    assert (legend == ALARM).all(2).any()
    for most in range(3):  # it begins with the one that has most pixels
        _, legend = drawn(tmp_path, **labelled(tmp_path, [[0, 1], [2, most]]))
        assert same(legend[33, GAP + 8], COLOURS[most])


def test_cells_stand_in_rows_with_captions_above(tmp_path):
    shades = [(10 * i, 90, 250 - 10 * i) for i in range(20)]
    samples = [dict(file=image(tmp_path, name=f'{i}.png', colour=shade), annotations=[],
                    captions=['wrong'] * (i < 12)) for i, shade in enumerate(shades)]
    assert draw_contact_sheet(Report('x', classes=[('disc', 1, 1)], samples=samples), tmp_path / 'sheet.png') == 16
    sheet = np.asarray(Image.open(tmp_path / 'sheet.png')).astype(int)
    band, cell = 6 + 17 * 3, HEIGHT + 44 + 6 + 17 * 3
    assert sheet.shape == (4 * (cell + GAP) + GAP, 4 * (WIDTH + GAP) + GAP, 3)
    for index in range(16):
        top, left = GAP + index // 4 * (cell + GAP), GAP + index % 4 * (WIDTH + GAP)
        assert same(sheet[top + band + 100, left + 100], shades[index]), index
        assert same(sheet[top + 2, left + WIDTH - 3], ALARM if index < 12 else (250, 250, 248))
        words = (sheet[top:top + 20, left:left + WIDTH] == 255).all(2).any()  # in white
        assert words == (index < 12)


def test_thin_pictures_have_a_row_and_a_column_at_least(tmp_path):
    for size, wanted in (((960, 1), (1, 480)), ((960, 4), (2, 480)), ((1, 720), (360, 1)), ((4, 720), (360, 2))):
        covered = (np.abs(drawn(tmp_path, size=size)[0] - PAPER) <= 1.5).all(2)
        assert (covered.any(1).sum(), covered.any(0).sum()) == wanted


@pytest.mark.parametrize('count, length', ((6, 5), (40, 1), (40, 12)))
def test_a_legend_that_does_not_fit_says_how_many_are_left(count, length, monkeypatch):
    ends, names = {}, [f'{i:0{length}}' for i in range(count)]
    monkeypatch.setattr(ImageDraw.ImageDraw, 'text', lambda self, place, text, fill, font: ends.update({
        text: place[0] + font.getlength(text)}))
    draw_legend(Image.new('RGB', (WIDTH, HEIGHT + 44)), 2, HEIGHT + 25, WIDTH, names, COLOURS[:1] * count, 13)
    shown = len([text for text in ends if text[0] != '+'])
    assert [*ends] == [*names[:shown], *[f'+{count - shown}'] * (shown < count)] and shown > 1
    assert [*ends.values()] == sorted(ends.values()) and max(ends.values()) <= WIDTH
    assert shown == count or ends[names[shown - 1]] > WIDTH - 40 - 26 - font_of(13).getlength('0' * length)


def test_without_an_image_that_can_be_read_there_is_no_sheet(tmp_path):
    (tmp_path / 'a.png').write_bytes(b'damaged')
    report = Report('x', samples=[dict(file=str(tmp_path / 'a.png'), captions=[], annotations=[])])
    assert draw_contact_sheet(report, tmp_path / 'in/sheet.png') == 0 and not (tmp_path / 'in').exists()
    image(tmp_path)
    assert draw_contact_sheet(report, tmp_path / 'in/new/sheet.png') == 1  # in a folder that it makes


def test_names_are_written_into_pictures_only_of_several_classes(tmp_path):
    """Of one class, the legend says it, and names would hide small objects; a problem is marked all the same."""
    sheets = {}
    for names in (NAMES[:1], NAMES[:2]):
        for marked in (False, True):
            report = Report('x', classes=[(name, 1, 1) for name in names], samples=[dict(
                file=image(tmp_path), captions=[], annotations=[thing('disc', [200, 200, 9, 9], marked=marked)])])
            draw_contact_sheet(report, tmp_path / 'sheet.png')
            pixels = np.asarray(Image.open(tmp_path / 'sheet.png')).astype(int)[GAP:GAP + HEIGHT, GAP:GAP + WIDTH]
            sheets[len(names), marked] = (abs(pixels - PAPER).max(-1) > 50).sum()
    assert sheets[1, False] < 100 < 500 < sheets[2, False] and sheets[1, True] > 500
