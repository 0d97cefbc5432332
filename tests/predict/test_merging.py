"""Objects of an image out of those that a perfect detector would find in its tiles, and their masks in memory."""
import cv2
import numpy as np
import pytest
from pycocotools import mask as mask_api

from xcit_dense.predict.merging import CutMask, CutMasks, finds_in, merge
from xcit_dense.predict.tiles import Span, Tiling

SIZE = 200, 300
MARGIN = 2
WITH_MASKS = pytest.mark.parametrize('masks', (True, False), ids=('masks', 'boxes'))


def rectangle(top, left, bottom, right, label=0):
    mask = np.zeros(SIZE, bool)
    mask[top:bottom, left:right] = True
    return label, mask


def ring(y, x, radius, label=0):
    return label, cv2.circle(np.zeros(SIZE, np.uint8), (x, y), radius, 1, radius // 3).astype(bool)


def box_of(mask):
    ys, xs = np.nonzero(mask)
    return xs.min(), ys.min(), xs.max() + 1, ys.max() + 1


def seen(objects, tiling, masks=True, change=None, least=8):
    """What is found in each tile: the part of each object in it, if that has some pixels; its score is its share."""
    finds = {}
    for tile in tiling.tiles(*SIZE):
        parts = [(label, mask[slice(*tile.y), slice(*tile.x)], mask.sum()) for label, mask in objects]
        there = [i for i, (_, part, _) in enumerate(parts) if part.sum() >= least]
        found = dict(bboxes=np.array([box_of(parts[i][1]) for i in there], np.float32).reshape(-1, 4),
                     scores=np.array([parts[i][1].sum() / parts[i][2] - i / 1000 for i in there]),
                     labels=[parts[i][0] for i in there])
        if masks:
            found.update(masks=[parts[i][1] for i in there])
        if change:
            change(tile, found)
        finds[tile] = finds_in(tile, found, SIZE, MARGIN)
    return finds


@WITH_MASKS
@pytest.mark.parametrize('name, objects', dict(
    cut_by_one_border=[rectangle(40, 85, 60, 115)], cut_by_four_tiles=[rectangle(85, 85, 115, 115)],
    in_the_overlap=[rectangle(20, 88, 40, 98)], larger_than_a_tile=[rectangle(10, 20, 190, 280)],
    a_ring_larger_than_a_tile=[ring(100, 150, 95)],
    # its ends meet in the last row
    an_open_ring=[(0, rectangle(10, 10, 190, 290)[1] & ~rectangle(0, 40, 160, 260)[1])],
    over_the_whole_image=[rectangle(0, 0, 200, 300)],
    side_by_side_over_four_tiles=[rectangle(60, 60, 100, 99), rectangle(60, 99, 100, 140), rectangle(100, 60, 140, 99),
                                  rectangle(100, 99, 140, 140)],
    two_classes_in_one_place=[rectangle(80, 80, 120, 120, 0), rectangle(80, 80, 120, 120, 1)],
    many_small=[rectangle(y, x, y + 9, x + 9) for y in range(70, 190, 20) for x in range(70, 190, 20)],
    one_in_another=[rectangle(10, 10, 30, 30), rectangle(12, 12, 20, 20)]).items())
def test_each_object_is_there_once(name, objects, masks):
    wanted = {(label, *box_of(mask)): mask for label, mask in objects}
    for overlap in (0.2, 0.5, 0.7) if masks or 'ring' not in name else ():  # boxes do not tell where in them it lies
        found = merge(seen(objects, Tiling(100, overlap), masks))
        assert [find.score for find in found] == sorted((find.score for find in found), reverse=True)
        got = {(find.label, *find.box.astype(int)): find.mask for find in found}
        assert got.keys() == wanted.keys() and len(found) == len(wanted)
        for key in wanted if masks else ():
            assert (got[key].within(Span(0, SIZE[0]), Span(0, SIZE[1])) == wanted[key]).all()


@WITH_MASKS
def test_finds_that_are_not_quite_alike(masks):
    """As of a real model: the boxes and masks of tiles differ by some pixels."""
    noise = np.random.default_rng(0)

    def shake(tile, found):
        found['bboxes'] += noise.uniform(-1.5, 1.5, found['bboxes'].shape).astype(np.float32)
        if masks:
            found['masks'] = [cv2.dilate(part.astype(np.uint8), np.ones((3, 3))) for part in found['masks']]

    objects = [rectangle(20, 80, 50, 97), rectangle(20, 97, 50, 130), rectangle(100, 10, 190, 290), ring(60, 200, 30)]
    assert len(merge(seen(objects, Tiling(100, 0.3), masks, shake, 60))) == len(objects)
    assert merge(seen([], Tiling(100), masks)) == [] and merge({}) == []


@pytest.mark.parametrize('columns, grown, box', (
    ((86, 98), 1, [85, 19, 99, 41]), ((86, 98), 0, [86, 20, 98, 40]),  # both tiles see it whole: the surer one counts
    ((75, 112), 0, [75, 20, 112, 40])))  # the first tile cuts it
@pytest.mark.parametrize('scores', ((0.9, 0.8), (0.8, 0.9)))
def test_what_two_tiles_find_is_whole_and_as_sure_as_the_surer(columns, grown, box, scores):
    def change(tile, found):
        found['scores'][:] = scores[min(tile.column, 1)]
        if scores[min(tile.column, 1)] == 0.9:
            found['bboxes'] += np.array([-1, -1, 1, 1], np.float32) * grown

    finds = seen([rectangle(20, columns[0], 40, columns[1])], Tiling(100, 0.2), change=change)
    assert sum(map(len, finds.values())) == 2
    found, = merge(finds)
    assert found.box.tolist() == box and not found.cut and found.score == 0.9


def test_a_find_is_cut_where_its_tile_ends_and_the_image_does_not():
    tiles = Tiling(100, 0.2).tiles(*SIZE)
    for apart in (MARGIN, MARGIN + 1):
        boxes = [[apart, 30, 50, 60], [30, apart, 60, 50], [50, 30, 100 - apart, 60], [30, 50, 60, 100 - apart]]
        found = dict(bboxes=np.array(boxes, np.float32), scores=np.ones(4), labels=[0] * 4)
        for tile in tiles:
            inner = tile.x.start > 0, tile.y.start > 0, tile.x.end < 300, tile.y.end < 200
            assert [find.cut for find in finds_in(tile, found, SIZE, MARGIN)] == [
                apart == MARGIN and side for side in inner]
    assert len(tiles) == 12


@WITH_MASKS
@pytest.mark.parametrize('other, part, whole, count', (
    ((0, 1), (22, 88, 35, 100), (20, 92, 45, 130), 1), ((0, 1), (20, 92, 80, 100), (20, 92, 45, 130), 2),
    ((1, 0), (88, 22, 100, 35), (92, 20, 130, 45), 1), ((1, 0), (92, 20, 100, 80), (92, 20, 130, 45), 2)))
def test_a_cut_find_that_is_mostly_within_one_of_another_tile_is_left_out(other, part, whole, count, masks):
    tiles = {(tile.row, tile.column): tile for tile in Tiling(100, 0.2).tiles(*SIZE)}

    def merged(part, whole):
        finds = {tile: seen([found], Tiling(100, 0.2), masks)[tile]
                 for tile, found in ((tiles[0, 0], part), (tiles[other], whole))}
        assert sum(map(len, finds.values())) == 2
        return merge(finds)

    assert len(merged(rectangle(*part), rectangle(*whole))) == count
    label, angle = rectangle(20, 82, 70, 130)  # by its mask if there is one: of an L, whose box has the cut one in it
    angle[20:50, 82:110] = False
    if other == (0, 1):
        assert len(merged(rectangle(22, 84, 45, 100), (label, angle))) == (2 if masks else 1)


def test_what_the_model_finds_twice_in_a_tile_it_finds_twice():
    """One object within another is the model's own affair, also if the tile cuts both or the outer one goes on."""
    tiling = Tiling(99, 0)
    nested, tile = [rectangle(30, 20, 90, 99), rectangle(50, 80, 70, 99)], tiling.tiles(*SIZE)[0]
    assert len(merge({tile: seen(nested, tiling, masks=False)[tile]})) == 2
    tiling, outer = Tiling(100, 0.2), rectangle(30, 20, 90, 160)
    first, second = tiling.tiles(*SIZE)[:2]
    finds = {first: seen([outer, rectangle(50, 80, 70, 100)], tiling)[first], second: seen([outer], tiling)[second]}
    assert [find.box.tolist() for find in merge(finds)] == [[80, 50, 100, 70], [20, 30, 160, 90]]


def test_cut_masks_are_those_of_the_whole_image():
    """Of all kinds: empty, full, of whole columns, of single pixels. Together they are used as an array."""
    noise = np.random.default_rng(0)
    for _ in range(300):
        height, width = noise.integers(1, 9, 2)
        mask, other = np.zeros((height, width), bool), noise.random((height, width)) < 0.3
        rows, columns = (slice(*np.sort(noise.integers(0, side + 1, 2))) for side in mask.shape)
        mask[rows, columns] = noise.random(mask[rows, columns].shape) < noise.choice([0.3, 0.8, 1])
        cut = CutMask.of(mask)
        assert cut.rle(height, width) == mask_api.encode(np.asfortranarray(mask.astype(np.uint8)))
        top, left = noise.integers(-3, 3, 2).tolist()
        padded = np.pad(mask, 9)[9 + top:, 9 + left:][:7, :8]
        assert (cut.within(Span(top, top + 7), Span(left, left + 8)) == padded).all()
        rows, columns = np.arange(0, height, 2), np.arange(0, width, 3)
        assert (cut.sampled(rows, columns) == mask[np.ix_(rows, columns)]).all()
        assert (CutMasks([cut | CutMask.of(other)], height, width)[0] == mask | other).all()
    assert CutMask.of(np.ones((2, 3), bool), 10, 20)[:2] == ((10, 12), (20, 23))  # in a tile
    whole = np.zeros((3, 5, 6), bool)
    whole[0, 1:3, 2:4] = whole[2, 4] = True
    found = CutMasks([CutMask.of(mask) for mask in whole], 5, 6)
    assert found.shape == whole.shape and found.dtype == bool and len(found) == 3
    assert (np.asarray(found) == whole).all() and all((a == b).all() for a, b in zip(found, whole, strict=True))
    assert (np.asarray(found[1:]) == whole[1:]).all() and (found[-1] == whole[-1]).all()
    for some in ([2, 0], np.array([True, False, True]), np.array([1])):
        assert (np.asarray(found[some]) == whole[some]).all() and isinstance(found[some], CutMasks)
    with pytest.raises(IndexError):
        found[3]
