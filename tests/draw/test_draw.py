"""What is drawn into images: objects, label maps and names; where, in which colours, and what stays visible."""
import colorsys
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from xcit_dense.draw import class_colours, draw_map, draw_objects
from xcit_dense.draw import classes as names_module
from xcit_dense.draw.classes import ALARM, BLACK, WHITE, chip, fit_text, font_of, ink_on, legible, place, text_size

NAMES, AREAS = ('disc', 'square'), ('background', 'disc', 'square')
COLOURS, AREA_COLOURS = class_colours(NAMES), class_colours(AREAS)
#: One object, found five times: by the best in the middle of the list, by others smaller, larger, of the other class.
TWICE = [[110, 82, 176, 150], [96, 70, 190, 166], [100, 80, 180, 150], [100, 80, 180, 150], [116, 84, 174, 140]]
OFTEN, GUESSES = [0.6, 0.9, 0.94, 0.65, 0.5], [1, 0, 0, 1, 0]


def paper(height=240, width=320):
    return np.full((height, width, 3), (20, 90, 200), np.uint8)


def changed(drawn):
    return (paper() != drawn).any(2)


def area_of(drawn, colour):
    return int((drawn == colour).all(2).sum())


def box_mask(left, top, right, bottom):
    mask = np.zeros((240, 320), bool)
    mask[top:bottom, left:right] = True
    return mask


def draw(boxes, labels, masks=None, scores=None, marks=None):
    return draw_objects(paper(), boxes, labels, NAMES, COLOURS, masks, scores, marks)


def test_classes_have_the_colours_of_a_palette_that_has_all_or_their_own():
    """The same in a detector and in a segmentor; of twenty, no two have nearly the same hue and tone."""
    # red, blue, green; the background is grey at any place and uses up no colour
    assert class_colours(['a', 'background', 'c', 'd']) == [(242, 36, 36), (90, 90, 90), (36, 96, 242), (157, 242, 36)]
    palette = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    assert class_colours('ab', palette) == [(1, 2, 3), (4, 5, 6)]
    assert class_colours('abc', palette) == [*map(tuple, palette.tolist())]
    assert all(type(value) is int for colour in class_colours('ab', palette) for value in colour)
    for missing in (None, [], palette[:1], 'random'):
        assert class_colours('ab', missing) == class_colours('ab')
    assert AREA_COLOURS[1:] == COLOURS == class_colours(['disc', 'square', 'cross'])[:2]
    colours = class_colours([str(i) for i in range(20)])
    assert min(np.abs(np.subtract(a, b)).sum() for i, a in enumerate(colours) for b in colours[:i]) > 50
    assert len({round(colorsys.rgb_to_hsv(*colour)[1], 1) for colour in colours}) > 1
    assert len(set(class_colours(map(str, range(150))))) == 150


def test_text_is_dark_on_light_colours():
    assert {*map(ink_on, [(0, 0, 255), (255, 0, 0), (0, 220, 0), (0, 140, 255)])} == {WHITE}
    assert {*map(ink_on, [(250, 250, 248), (255, 140, 0)])} == {BLACK}


def test_each_label_has_its_colour():
    """What is ignored is dark, what has no class is striped across."""
    for kind, unknown in ((np.uint8, 9), (np.int64, -1), (np.uint16, 65535)):
        labels = np.repeat(np.array([0, 1, 2, 255, unknown], kind), 64)[None].repeat(240, 0)
        drawn = draw_map(paper(), labels, AREAS, AREA_COLOURS, named=False)
        for i, colour in enumerate(AREA_COLOURS):
            assert np.abs(drawn[100, 64 * i + 40] - (0.4 * paper()[0, 0] + 0.6 * np.array(colour))).max() <= 1
        assert np.abs(drawn[100, 220] - 0.25 * paper()[0, 0]).max() <= 1
        striped = (drawn[:, 256:] == ALARM).all(2)
        assert all(np.abs(striped.mean(axis) - 0.5).max() < 0.1 for axis in (0, 1)) and not striped[:, :4].all()
    drawn = draw_map(paper(), np.full((240, 320), 255), [str(i) for i in range(300)], class_colours('a' * 300), ())
    assert not area_of(drawn, ALARM)  # 255 is a class here


def shows(drawn, name, colour, *more, size=None):
    found = chip(name, size or text_size(drawn), colour, drawn.shape[1], *more)
    return (np.lib.stride_tricks.sliding_window_view(drawn, found.shape)[:, :, 0] == found).all((2, 3, 4)).any()


def test_every_class_has_its_name_in_its_region():
    """That of a small region is next to it, that of some pixels is omitted; images of any size can be drawn."""
    labels = np.zeros((240, 320), np.uint8)
    labels[20:220, 20:150], labels[180:200, 250:270], labels[60:66, 300:306] = 1, 2, 3
    drawn = draw_map(paper(), labels, (*AREAS, 'dust'), (*AREA_COLOURS, (9, 8, 7)))
    assert all(shows(drawn, name, colour) for name, colour in zip(AREAS, AREA_COLOURS, strict=True))
    assert not shows(drawn, 'dust', (9, 8, 7))
    rows, columns = (drawn[40:200, 30:140] == COLOURS[0]).all(2).nonzero()  # the name, around an innermost point
    assert abs(columns.mean() + 30 - 85) < 3 and 80 < rows.mean() + 40 < 160
    large = draw_map(paper(960, 1280), np.pad(np.full((100, 100), 2), ((400, 460), (600, 580))), AREAS, AREA_COLOURS)
    assert area_of(large, COLOURS[1])  # in pixels of the picture
    small = np.abs(drawn[184:196, 254:266] - (0.4 * paper()[0, 0] + 0.6 * np.array(COLOURS[1])))
    assert (small <= 1).mean() > 0.9
    drawn = draw_map(paper(30, 40), np.repeat([[1, 2]], [10, 30], 1).repeat(30, 0), AREAS, AREA_COLOURS)
    assert shows(drawn, 'square', COLOURS[1]) and not shows(drawn, 'disc', COLOURS[0])  # there is room for one
    for size in ((1, 1), (1, 500), (40, 30)):
        assert draw_map(paper(*size), np.ones(size, int), AREAS, AREA_COLOURS).shape == (*size, 3)


def test_a_mask_is_blended_and_its_name_is_outside():
    picture, box = paper(), [100, 100, 180, 150]
    drawn = draw_objects(picture, [box], [1], NAMES, COLOURS, box_mask(*box)[None])
    assert (picture == paper()).all()
    inner = drawn[104:146, 104:176]
    assert np.ptp(inner.reshape(-1, 3), 0).max() == 0
    assert np.abs(inner[0, 0] - (0.57 * picture[0, 0] + 0.43 * np.array(COLOURS[1]))).max() <= 1
    found = chip('square', text_size(picture), COLOURS[1], 320)
    height, width = found.shape[:2]
    assert (drawn[100 - height:98, 104:100 + width] == found[:-2, 4:]).all()  # above its box
    assert draw([box], [1], np.zeros((1, 240, 320), bool)).shape == picture.shape


@pytest.mark.parametrize('scores', (None, (0.5, 0.5)))
def test_without_a_better_one_large_objects_do_not_hide_small_ones(scores):
    boxes = [[100, 100, 140, 140], [10, 10, 310, 230]]
    masks = [box_mask(*box) for box in boxes]
    first, second = draw(boxes, [0, 1], masks, scores), draw(boxes[::-1], [1, 0], masks[::-1], scores)
    alone = draw(boxes[:1], [0], masks[:1], scores and scores[:1])
    assert (first == second).all() and (first[100:140, 100:140] == alone[100:140, 100:140]).all()


@pytest.mark.parametrize('order', ([0, 1, 2, 3, 4], [2, 3, 0, 4, 1]))
def test_duplicates_change_no_pixel_of_the_best(order):
    """Neither by their masks nor by their outlines, boxes and names, whatever the order of the list."""
    masks = np.array([box_mask(*box) for box in TWICE])
    masks[:, 95:105, 120:150] = False  # a hole, in which others are visible
    far = [10, 190, 60, 230]  # what is elsewhere is named as without them
    alone = draw([TWICE[2], far], [0, 1], [masks[2], box_mask(*far)], [0.94, 0.2])
    drawn = draw([*(TWICE[i] for i in order), far], [*(GUESSES[i] for i in order), 1],
                 [*(masks[i] for i in order), box_mask(*far)], [*(OFTEN[i] for i in order), 0.2])
    same = (drawn == alone).all(2)
    assert same[masks[2]].all() and same[180:, :80].all()
    assert not same[68:170, 94:192].all()  # larger duplicates are visible around it


def test_among_boxes_alone_the_best_has_its_lines_and_its_name():
    alone, drawn = (draw([TWICE[i] for i in part], [GUESSES[i] for i in part], scores=[OFTEN[i] for i in part])
                    for part in ([2], [2, 1, 0, 3, 4]))
    x1, y1, x2, y2 = TWICE[2]
    own, lines = changed(alone), np.zeros((240, 320), bool)
    own[:, x2:] = own[y2:] = False  # there names of others touch it
    assert own.sum() > 500 and (drawn[own] == alone[own]).all()
    for left, top, right, bottom in TWICE:
        lines[top:bottom + 1, [left, right]] = lines[[top, bottom], left:right] = True
    assert changed(drawn)[lines].all()
    inside = box_mask(x1, y1, x2, y2) & ~lines
    assert inside.sum() > 2000 and not changed(drawn)[inside].any()
    boxes = [[20, 20, 300, 220], [150, 100, 170, 140]]  # a tie on a person: a part is no duplicate
    drawn = draw(boxes, [0, 1], [box_mask(*box) for box in boxes], [0.95, 0.4])
    assert area_of(drawn[95:145, 145:175], COLOURS[1]) >= 2 * (20 + 40) - 4


def test_marked_objects_stand_out_also_under_better_ones():
    boxes = [[60, 60, 120, 120], [180, 60, 240, 120]]
    plain, drawn = draw(boxes, [1, 1]), draw(boxes, [1, 1], marks=['', 'missed'])
    assert not area_of(plain, BLACK) and not area_of(drawn[:, :150], BLACK) and area_of(drawn[:, 150:], BLACK) > 400
    boxes, masks = [[60, 60, 160, 160]] * 2, [box_mask(60, 60, 160, 160)] * 2
    alarm = (draw(boxes, [1, 1], masks, [0.9, 0.5], ['', 'duplicate']) == BLACK).all(2)
    assert alarm[100, 50:62].any() and alarm[100, 158:170].any() and alarm[158:170, 100].any()
    boxes[0] = [50, 40, 170, 180]  # and not only their chips, where the better mask is larger
    drawn = draw(boxes, [1, 1], [box_mask(*boxes[0]), masks[1]], [0.9, 0.5], ['', 'duplicate'])
    assert (drawn[120:130, 55:65] == BLACK).all(2).any(1).all()
    boxes = [[20, 60, 300, 230], [200, 100, 240, 130]]  # where there is room for one name: a marked one, or a large one
    for mark, *first in (('', 'square', COLOURS[1], '0.50'), ('missed', 'missed: disc', BLACK, '0.90', True)):
        drawn = draw_objects(paper(), boxes, [1, 0], NAMES, COLOURS, None, [0.5, 0.9], ['', mark], size=40)
        assert shows(drawn, *first, size=40)


def test_the_mark_of_a_small_object_is_around_it_and_one_class_has_no_name():
    box = [[100, 100, 110, 110]]
    drawn = draw(box, [0], marks=['missed'])
    assert (drawn[100:111, 100:111] == paper()[0, 0]).all()
    assert [tuple(drawn[105, x]) for x in (111, 112, 113, 114)] == [COLOURS[0], WHITE, BLACK, BLACK]
    drawn = draw_objects(paper(), box, [0], [''], COLOURS, marks=['missed'])
    assert shows(drawn, 'missed', BLACK, '', True)
    assert area_of(draw_objects(paper(), box, [0], [''], COLOURS), COLOURS[0]) <= 40  # only its box
    drawn = draw_objects(paper(2400, 3200), box, [0], [''], COLOURS)
    assert (drawn[102:109, 102:109] == paper()[0, 0]).all()  # in thin lines


@pytest.mark.parametrize('box', ((0, 0, 30, 30), (290, 210, 320, 240), (150, 0, 170, 240), (-50, -50, 400, 400),
                                 (10, 10, 10, 10), (float('nan'), 0, float('inf'), 9), (500, 500, 600, 600)))
def test_any_box_can_be_drawn_and_names_are_inside_the_picture(box):
    assert shows(draw([box], [0], scores=[0.456]), 'disc', COLOURS[0], '0.46')


def test_objects_of_classes_without_a_name_and_no_objects():
    assert shows(draw([[9, 50, 99, 99]], [7]), 'class 7', WHITE)
    assert (draw([], [], scores=[], marks=[]) == paper()).all()
    assert (draw(np.zeros((0, 4)), [], np.zeros((0, 240, 320))) == paper()).all()


def test_a_name_begins_at_the_left_of_its_box():
    for x in (0, 40):
        assert place(np.array([[x, 50., x + 9, 60.]]), [(60, 11)], (240, 320, 3)) == [(x, 39)]


def test_names_do_not_bury_a_crowded_picture():
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, (300, 220), (200, 2))
    boxes = np.hstack([corners, corners + 16])
    assert draw(boxes, [0] * 200, scores=rng.random(200)).shape == paper().shape
    chips = [(x, y, x + 60, y + 11) for x, y in filter(None, place(boxes, [(60, 11)] * 200, (240, 320, 3)))]
    assert len(chips) >= 1 and len(chips) * 660 <= 0.15 * 240 * 320
    for i, (x1, y1, x2, y2) in enumerate(chips):
        assert all(min(x2, c) - max(x1, a) <= 3 or min(y2, d) - max(y1, b) <= 1 for a, b, c, d in chips[:i])
        assert x1 >= 0 and y1 >= 0 and x2 <= 320 and y2 <= 240


def test_names_are_legible_at_any_size_and_cut_before_their_score():
    for size in ((60, 80), (480, 640), (3000, 4000)):
        assert text_size(np.empty((*size, 3), bool)) >= max(9, 0.02 * min(size))
    font = font_of(12)
    found, other = (chip('a very long name of a class ' * 3, 12, COLOURS[0], 150, score) for score in ('0.87', '0.12'))
    assert 120 < found.shape[1] <= 150 and np.flatnonzero((found != other).any((0, 2))).min() > 100
    assert fit_text('abc', font, 100) == 'abc' and fit_text('abc\n' * 20, font, 60).endswith('...')
    assert 60 - font.getlength('W') < font.getlength(fit_text('W' * 40, font, 60)) <= 60


@pytest.fixture
def other_fonts(monkeypatch):
    """Replaces the fonts of the system."""
    def use(*files):
        monkeypatch.setattr(names_module, '_system_files', lambda: [*files])
        names_module._file_with.cache_clear()
        names_module._warn.cache_clear()
    yield use
    monkeypatch.undo()
    names_module._file_with.cache_clear()


def test_letters_that_the_own_font_lacks_are_taken_from_another(other_fonts, tmp_path):
    own, stix = (Path(matplotlib.get_data_path(), 'fonts/ttf', name) for name in ('DejaVuSans.ttf', 'STIXGeneral.ttf'))
    letter = min(names_module._letters_of(stix) - names_module._letters_of(own))
    (tmp_path / 'damaged.ttf').write_bytes(b'no font')
    other_fonts(tmp_path / 'damaged.ttf', stix)
    assert legible(f'a{letter}') == f'a{letter}'
    assert font_of(12, letter).getname() != font_of(12, 'собака').getname() == font_of(12, 'dog').getname()


def test_without_a_font_names_are_codes_and_one_warning_tells(other_fonts, caplog):
    other_fonts()
    assert [legible(name) for name in ('dog', 'σκύλος', '犬 1', '猫')] == ['dog', 'σκύλος', r'\u72ac 1', r'\u732b']
    assert len(caplog.records) == 1 and 'Install a font' in caplog.text
    assert not np.array_equal(chip('犬', 12, COLOURS[0], 150), chip('猫', 12, COLOURS[0], 150))
