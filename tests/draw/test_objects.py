"""Objects in pictures: what is drawn, where, and what stays visible."""
from pathlib import Path

import matplotlib
import numpy as np
import pytest

from xcit_dense.draw import class_colours, draw_objects
from xcit_dense.draw import names as names_module
from xcit_dense.draw.colours import ALARM
from xcit_dense.draw.names import chip, fit_text, font_of, legible, text_size
from xcit_dense.draw.places import place

NAMES = ('disc', 'square')
COLOURS = class_colours(NAMES)


def paper(height=240, width=320):
    return np.full((height, width, 3), (20, 90, 200), np.uint8)


def changed(picture, drawn):
    return (picture != drawn).any(2)


def area_of(drawn, colour):
    return int((drawn == colour).all(2).sum())


def test_a_mask_is_blended_and_its_name_is_outside():
    picture, mask = paper(), np.zeros((240, 320), bool)
    mask[100:150, 100:180] = True
    kept = picture.copy()
    drawn = draw_objects(picture, [[100, 100, 180, 150]], [1], NAMES, COLOURS, mask[None])
    assert (picture == kept).all()
    inner = drawn[104:146, 104:176]
    assert np.ptp(inner.reshape(-1, 3), 0).max() == 0 and (inner[0, 0] != picture[0, 0]).any()
    found = chip('square', text_size(picture), COLOURS[1], 320)
    height, width = found.shape[:2]
    assert (drawn[100 - height:98, 104:100 + width] == found[:-2, 4:]).all()  # above its box
    mask[:] = False
    assert draw_objects(picture, [[100, 100, 180, 150]], [1], NAMES, COLOURS, mask[None]).shape == picture.shape


def box_mask(left, top, right, bottom):
    mask = np.zeros((240, 320), bool)
    mask[top:bottom, left:right] = True
    return mask


@pytest.mark.parametrize('scores', (None, (0.5, 0.5)))
def test_without_a_better_one_large_objects_do_not_hide_small_ones(scores):
    boxes = [[100, 100, 140, 140], [10, 10, 310, 230]]
    masks = np.array([box_mask(*box) for box in boxes])
    first = draw_objects(paper(), boxes, [0, 1], NAMES, COLOURS, masks, scores)
    second = draw_objects(paper(), boxes[::-1], [1, 0], NAMES, COLOURS, masks[::-1], scores)
    alone = draw_objects(paper(), boxes[:1], [0], NAMES, COLOURS, masks[:1], scores and scores[:1])
    assert (first == second).all() and (first[100:140, 100:140] == alone[100:140, 100:140]).all()


#: One object, found five times: by the best in the middle of the list, by others smaller, larger, of the other class.
TWICE = [[110, 82, 176, 150], [96, 70, 190, 166], [100, 80, 180, 150], [100, 80, 180, 150], [116, 84, 174, 140]]
OFTEN, GUESSES = [0.6, 0.9, 0.94, 0.65, 0.5], [1, 0, 0, 1, 0]


@pytest.mark.parametrize('order', ([0, 1, 2, 3, 4], [2, 3, 0, 4, 1], [1, 4, 0, 3, 2]))
def test_duplicates_change_no_pixel_of_the_best(order):
    """Neither by their masks nor by their outlines, boxes and names, whatever the order of the list."""
    masks = np.array([box_mask(*box) for box in TWICE])
    masks[:, 95:105, 120:150] = False  # a hole, in which others are visible
    far = [10, 190, 60, 230]  # what is elsewhere is named as without them
    alone = draw_objects(paper(), [TWICE[2], far], [0, 1], NAMES, COLOURS, [masks[2], box_mask(*far)], [0.94, 0.2])
    drawn = draw_objects(paper(), [*(TWICE[i] for i in order), far], [*(GUESSES[i] for i in order), 1], NAMES, COLOURS,
                         [*(masks[i] for i in order), box_mask(*far)], [*(OFTEN[i] for i in order), 0.2])
    same = (drawn == alone).all(2)
    assert same[masks[2]].all() and same[180:, :80].all()
    assert not same[68:170, 94:192].all()  # larger duplicates are visible around it


def test_among_boxes_alone_the_best_has_its_lines_and_its_name():
    """The lines of others cross it, and nothing else of them is in it."""
    alone, drawn = (draw_objects(paper(), [TWICE[i] for i in part], [GUESSES[i] for i in part], NAMES, COLOURS,
                                 scores=[OFTEN[i] for i in part]) for part in ([2], [2, 1, 0, 3, 4]))
    x1, y1, x2, y2 = TWICE[2]
    own, lines = changed(paper(), alone), np.zeros((240, 320), bool)
    own[:, x2:] = own[y2:] = False  # there names of others touch it
    assert own.sum() > 500 and (drawn[own] == alone[own]).all()
    for left, top, right, bottom in TWICE:
        lines[top:bottom + 1, [left, right]] = lines[[top, bottom], left:right] = True
    assert changed(paper(), drawn)[lines].all()
    inside = box_mask(x1, y1, x2, y2) & ~lines
    assert inside.sum() > 2000 and not changed(paper(), drawn)[inside].any()


def test_a_worse_object_within_a_better_one_keeps_its_box():
    """A tie on a person: a part is no duplicate."""
    boxes, scores = [[20, 20, 300, 220], [150, 100, 170, 140]], [0.95, 0.4]
    drawn = draw_objects(paper(), boxes, [0, 1], NAMES, COLOURS, [box_mask(*box) for box in boxes], scores)
    assert area_of(drawn[95:145, 145:175], COLOURS[1]) >= 2 * (20 + 40) - 4


def test_marked_objects_are_visible_under_better_ones():
    boxes, masks = [[60, 60, 160, 160]] * 2, [box_mask(60, 60, 160, 160)] * 2
    drawn = draw_objects(paper(), boxes, [1, 1], NAMES, COLOURS, masks, [0.9, 0.5], ['', 'duplicate'])
    alarm = (drawn == ALARM).all(2)
    assert alarm[100, 50:62].any() and alarm[100, 158:170].any() and alarm[158:170, 100].any()
    boxes[0] = [50, 40, 170, 180]  # and not only their chips, where the better mask is larger
    masks[0] = box_mask(*boxes[0])
    drawn = draw_objects(paper(), boxes, [1, 1], NAMES, COLOURS, masks, [0.9, 0.5], ['', 'duplicate'])
    assert (drawn[120:130, 55:65] == ALARM).all(2).any(1).all()


@pytest.mark.parametrize('box', ((0, 0, 30, 30), (290, 210, 320, 240), (150, 0, 170, 240), (-50, -50, 400, 400),
                                 (10, 10, 10, 10), (float('nan'), 0, float('inf'), 9), (500, 500, 600, 600)))
def test_any_box_can_be_drawn_and_names_are_inside_the_picture(box):
    drawn = draw_objects(paper(), [box], [0], NAMES, COLOURS, scores=[0.5])
    text = chip('disc', text_size(drawn), COLOURS[0], 320, '0.50')
    ink = int((text == text[text.shape[0] // 2, 0]).all(2).sum())
    assert area_of(drawn, COLOURS[0]) >= 0.9 * ink


def test_objects_of_classes_without_a_name_and_no_objects():
    picture = paper()
    assert changed(picture, draw_objects(picture, [[9, 50, 99, 99]], [7], NAMES, COLOURS)).any()
    assert (draw_objects(picture, [], [], NAMES, COLOURS, scores=[], marks=[]) == picture).all()
    assert (draw_objects(picture, np.zeros((0, 4)), [], NAMES, COLOURS, masks=np.zeros((0, 240, 320))) == picture).all()


def test_marked_objects_stand_out():
    boxes = [[60, 60, 120, 120], [180, 60, 240, 120]]
    plain = draw_objects(paper(), boxes, [1, 1], NAMES, COLOURS)
    drawn = draw_objects(paper(), boxes, [1, 1], NAMES, COLOURS, marks=['', 'missed'])
    assert not area_of(plain, ALARM) and not area_of(drawn[:, :150], ALARM) and area_of(drawn[:, 150:], ALARM) > 800


def test_names_do_not_bury_a_crowded_picture():
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, (300, 220), (200, 2))
    boxes = np.hstack([corners, corners + 16])
    picture = paper()
    drawn = draw_objects(picture, boxes, [0] * 200, ['a long name'], COLOURS, scores=rng.random(200))
    sizes = [(60, 11)] * 200
    corners = place(boxes, sizes, picture.shape)
    chips = [(x, y, x + 60, y + 11) for x, y in filter(None, corners)]
    assert len(chips) >= 1 and len(chips) * 660 <= 0.15 * 240 * 320
    for i, (x1, y1, x2, y2) in enumerate(chips):
        assert all(min(x2, c) - max(x1, a) <= 3 or min(y2, d) - max(y1, b) <= 1 for a, b, c, d in chips[:i])
        assert x1 >= 0 and y1 >= 0 and x2 <= 320 and y2 <= 240
    assert drawn.shape == picture.shape


def test_small_objects_are_not_under_names():
    """Neither their own nor those of others: two small boxes above each other, each with a name at its side."""
    boxes = np.array([[150, 100, 170, 112], [150, 114, 170, 126], [150, 128, 170, 140]], float)
    for x, y in filter(None, place(boxes, [(60, 12)] * 3, (240, 320))):
        for x1, y1, x2, y2 in boxes:
            assert min(x + 60, x2) - max(x, x1) <= 1 or min(y + 12, y2) - max(y, y1) <= 1


@pytest.mark.parametrize('size', ((60, 80), (480, 640), (3000, 4000)))
def test_names_are_legible_at_any_size_of_the_picture(size):
    text = text_size(np.empty((*size, 3), bool))
    assert text >= 9 and text / min(size) >= 0.02


def test_long_names_are_cut_and_scores_are_not():
    font = font_of(12)
    found, other = (chip('a very long name of a class ' * 3, 12, COLOURS[0], 150, score) for score in ('0.87', '0.12'))
    differs = np.flatnonzero((found != other).any((0, 2)))
    assert 120 < found.shape[1] <= 150 and differs.min() > 100
    assert fit_text('abc', font, 100) == 'abc' and fit_text('abc\n' * 20, font, 60).endswith('...')
    assert font.getlength(fit_text('W' * 40, font, 60)) <= 60


@pytest.fixture
def other_fonts(monkeypatch):
    """Replaces the fonts of the system."""
    def use(*files):
        monkeypatch.setattr(names_module, '_system_files', lambda: [*files])
        names_module._file_with.cache_clear()
        monkeypatch.setattr(names_module, '_WARNED', [])
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
