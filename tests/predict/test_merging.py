"""Objects of a picture out of those that a perfect detector would find in its tiles."""
import cv2
import numpy as np
import pytest

from xcit_dense.predict.merging import finds_in, merge
from xcit_dense.predict.tiling import Span, Tiling

SIZE = 200, 300
MARGIN = 2


def rectangle(top, left, bottom, right, label=0):
    mask = np.zeros(SIZE, bool)
    mask[top:bottom, left:right] = True
    return label, mask


def ring(y, x, radius, label=0):
    return label, cv2.circle(np.zeros(SIZE, np.uint8), (x, y), radius, 1, radius // 3).astype(bool)


def seen(objects, tiling, masks=True, change=None, least=8):
    """What is found in each tile: all that lies in it of each object, where that has some pixels; the score is the
    share that does."""
    finds = {}
    for tile in tiling.tiles(*SIZE):
        boxes, scores, labels, parts = [], [], [], []
        for number, (label, mask) in enumerate(objects):
            part = mask[slice(*tile.y), slice(*tile.x)]
            if part.sum() < least:
                continue
            ys, xs = np.nonzero(part)
            boxes.append([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
            scores.append(part.sum() / mask.sum() - number / 1000)
            labels.append(label)
            parts.append(part)
        found = dict(bboxes=np.array(boxes, np.float32).reshape(-1, 4), scores=np.array(scores), labels=labels)
        if masks:
            found.update(masks=parts)
        if change:
            change(tile, found)
        finds[tile] = finds_in(tile, found, SIZE, MARGIN)
    return finds


def check(objects, finds, masks=True):
    """The objects are found once each, whole."""
    found = merge(finds, MARGIN)
    assert [find.score for find in found] == sorted((find.score for find in found), reverse=True)
    wanted, got = {}, {}
    for label, mask in objects:
        ys, xs = np.nonzero(mask)
        wanted[label, xs.min(), ys.min(), xs.max() + 1, ys.max() + 1] = mask
    for find in found:
        got[(find.label, *find.box.astype(int))] = find.mask
    assert got.keys() == wanted.keys() and len(found) == len(objects)
    for key in wanted if masks else ():
        assert (got[key].within(Span(0, SIZE[0]), Span(0, SIZE[1])) == wanted[key]).all()


HARD = dict(
    inside=[rectangle(10, 10, 30, 30)],
    cut_by_one_border=[rectangle(40, 85, 60, 115)],
    cut_by_four_tiles=[rectangle(85, 85, 115, 115)],
    in_the_overlap=[rectangle(20, 88, 40, 98)],
    larger_than_a_tile=[rectangle(10, 20, 190, 280)],
    a_ring_larger_than_a_tile=[ring(100, 150, 95)],
    over_the_whole_picture=[rectangle(0, 0, 200, 300)],
    a_long_one=[rectangle(90, 5, 105, 295)],
    side_by_side=[rectangle(20, 70, 60, 95), rectangle(20, 95, 60, 130)],
    side_by_side_over_four_tiles=[rectangle(60, 60, 100, 99), rectangle(60, 99, 100, 140), rectangle(100, 60, 140, 99),
                                  rectangle(100, 99, 140, 140)],
    one_above_the_other=[rectangle(70, 80, 92, 120), rectangle(92, 80, 130, 120)],
    two_classes_in_one_place=[rectangle(80, 80, 120, 120, 0), rectangle(80, 80, 120, 120, 1)],
    many_small=[rectangle(y, x, y + 9, x + 9) for y in range(70, 190, 10) for x in range(70, 190, 10)])


@pytest.mark.parametrize('masks', (True, False), ids=('masks', 'boxes'))
@pytest.mark.parametrize('overlap', (0, 0.2, 0.5, 0.7))
@pytest.mark.parametrize('name', HARD)
def test_each_object_is_there_once(name, overlap, masks):
    if name == 'side_by_side_over_four_tiles' and not overlap:
        pytest.skip('without an overlap no tile tells what goes on behind its border')
    if name == 'a_ring_larger_than_a_tile' and not masks:
        pytest.skip('boxes do not tell where in them it lies')
    check(HARD[name], seen(HARD[name], Tiling(100, overlap), masks), masks)


@pytest.mark.parametrize('masks', (True, False), ids=('masks', 'boxes'))
def test_finds_that_are_not_quite_alike(masks):
    """As of a real model: the boxes and masks of tiles differ by some pixels, and the surest stays as it is."""
    noise = np.random.default_rng(0)

    def shake(tile, found):
        found['bboxes'] += noise.uniform(-1.5, 1.5, found['bboxes'].shape).astype(np.float32)
        if masks:
            found['masks'] = [cv2.dilate(part.astype(np.uint8), np.ones((3, 3))) for part in found['masks']]

    objects = [rectangle(20, 80, 50, 97), rectangle(20, 97, 50, 130), rectangle(100, 10, 190, 290), ring(60, 200, 30)]
    assert len(merge(seen(objects, Tiling(100, 0.3), masks, shake, 60), MARGIN)) == len(objects)


def test_the_surest_of_whole_finds_stays_as_it_is():
    """Where both tiles see an object whole nothing is put together."""
    objects = [rectangle(20, 86, 40, 98)]
    first, *_ = tiles = Tiling(100, 0.2).tiles(*SIZE)

    def grow(tile, found):
        for i in range(len(found['bboxes'])):
            found['bboxes'][i] += (-1, -1, 1, 1) if tile == first else 0
            found['scores'][i] = 0.9 if tile == first else 0.8

    finds = seen(objects, Tiling(100, 0.2), change=grow)
    assert sum(map(len, finds.values())) == 2 and len(tiles) > 2
    found, = merge(finds, MARGIN)
    assert found.box.tolist() == [85, 19, 99, 41] and found.score == 0.9


def test_a_find_is_cut_where_its_tile_ends_and_the_picture_does_not():
    """Of finds at the left, upper, right and lower border of each tile, within the margin and just outside."""
    tiles = Tiling(100, 0.2).tiles(*SIZE)
    for apart in (MARGIN, MARGIN + 1):
        boxes = [[apart, 30, 50, 60], [30, apart, 60, 50], [50, 30, 100 - apart, 60], [30, 50, 60, 100 - apart]]
        found = dict(bboxes=np.array(boxes, np.float32), scores=np.ones(4), labels=[0] * 4)
        for tile in tiles:
            inner = tile.x.start > 0, tile.y.start > 0, tile.x.end < 300, tile.y.end < 200
            assert [find.cut for find in finds_in(tile, found, SIZE, MARGIN)] == [
                apart == MARGIN and side for side in inner]
    assert len(tiles) == 12


@pytest.mark.parametrize('scores', ((0.9, 0.8), (0.8, 0.9)))
def test_what_one_tile_cuts_and_another_sees_whole_is_whole(scores):
    def set_score(tile, found):
        found['scores'][:] = scores[min(tile.column, 1)]

    found, = merge(seen([rectangle(20, 75, 40, 112)], Tiling(100, 0.2), change=set_score), MARGIN)
    assert found.box.tolist() == [75, 20, 112, 40] and not found.cut and found.score == 0.9


@pytest.mark.parametrize('masks', (True, False), ids=('masks', 'boxes'))
@pytest.mark.parametrize('beside, part, whole, count', (
    ('right', (22, 88, 35, 100), (20, 92, 45, 130), 1), ('right', (20, 92, 80, 100), (20, 92, 45, 130), 2),
    ('below', (88, 22, 100, 35), (92, 20, 130, 45), 1), ('below', (92, 20, 100, 80), (92, 20, 130, 45), 2)))
def test_a_cut_find_that_is_mostly_within_one_of_another_tile_is_left_out(beside, part, whole, count, masks):
    """Though they do not agree: of a sliver a model says much that is not so."""
    tiles = Tiling(100, 0.2).tiles(*SIZE)
    other = next(tile for tile in tiles if (tile.row, tile.column) == ((0, 1) if beside == 'right' else (1, 0)))
    finds = {tile: seen([rectangle(*place)], Tiling(100, 0.2), masks)[tile]
             for tile, place in ((tiles[0], part), (other, whole))}
    assert sum(map(len, finds.values())) == 2 and len(merge(finds, MARGIN)) == count


def test_what_the_model_finds_twice_in_a_tile_it_finds_twice():
    """One object within another is the model's own affair."""
    check(HARD['inside'] + [rectangle(12, 12, 20, 20)],
          seen(HARD['inside'] + [rectangle(12, 12, 20, 20)], Tiling(100, 0.2)))
    nested = [rectangle(30, 20, 90, 99), rectangle(50, 80, 70, 99)]  # both cut by the first tile
    tile = Tiling(99, 0).tiles(*SIZE)[0]
    finds = {tile: seen(nested, Tiling(99, 0), masks=False)[tile]}
    assert len(merge(finds, MARGIN)) == 2
    first, second = Tiling(100, 0.2).tiles(*SIZE)[:2]  # the outer one goes on in the second tile
    finds = {first: seen([rectangle(30, 20, 90, 160), rectangle(50, 80, 70, 100)], Tiling(100, 0.2))[first],
             second: seen([rectangle(30, 20, 90, 160)], Tiling(100, 0.2))[second]}
    assert [find.box.tolist() for find in merge(finds, MARGIN)] == [[80, 50, 100, 70], [20, 30, 160, 90]]


def test_nothing_is_found():
    assert merge(seen([], Tiling(100)), MARGIN) == [] and merge({}, MARGIN) == []
