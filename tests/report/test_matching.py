"""Which prediction found which object, on boxes made by hand."""
import numpy as np
import pytest

from xcit_dense.report.detected import IGNORED, NONE, Best, best_of, match

BOX, NEAR, FAR = (10., 10., 20., 20.), (12., 10., 20., 20.), (60., 60., 20., 20.)


def matched(objects, predictions):
    """Objects: class, box, and whether it is a crowd region; predictions: class, box, score."""
    labels, boxes, crowd = zip(*objects, strict=True) if objects else ((), (), ())
    guesses, found, scores = zip(*predictions, strict=True) if predictions else ((), (), ())
    done = match(np.array(boxes, float).reshape(-1, 4), np.array(labels, int), np.array(crowd, bool),
                 np.array(found, float).reshape(-1, 4), np.array(guesses, int), np.array(scores, float))
    return [part.tolist() for part in done]


@pytest.mark.parametrize('objects, predictions, of_class, of_any, again', [
    ([], [], [], [], []),
    ([(0, BOX, False)], [], [], [], []),
    ([], [(0, BOX, 0.9)], [NONE], [NONE], [False]),
    ([(0, BOX, False)], [(0, NEAR, 0.9)], [0], [0], [False]),
    ([(0, BOX, False)], [(0, FAR, 0.9)], [NONE], [NONE], [False]),
    # the higher score takes the object, whatever the IoU; the second prediction is one too many
    ([(0, BOX, False)], [(0, BOX, 0.5), (0, NEAR, 0.9)], [NONE, 0], [NONE, 0], [True, False]),
    # of two objects the nearer; of equal ones the last, as pycocotools
    ([(0, NEAR, False), (0, BOX, False)], [(0, BOX, 0.9)], [1], [1], [False]),
    ([(0, BOX, False), (0, BOX, False)], [(0, BOX, 0.9)], [1], [1], [False]),
    # of equal scores the first prediction
    ([(0, BOX, False)], [(0, NEAR, 0.9), (0, BOX, 0.9)], [0, NONE], [0, NONE], [False, True]),
    # another class only takes what is left, also with a higher score
    ([(0, BOX, False)], [(1, BOX, 0.9)], [NONE], [0], [False]),
    ([(0, BOX, False)], [(1, BOX, 0.9), (0, NEAR, 0.4)], [NONE, 0], [NONE, 0], [False, False]),
    # below the score, a prediction takes no object from another class
    ([(0, BOX, False)], [(1, BOX, 0.9), (0, NEAR, 0.2)], [NONE, 0], [0, NONE], [False, False]),
    ([(0, BOX, False)], [(0, BOX, 0.2)], [0], [NONE], [False]),
    # a crowd region takes any number of its class and none of others; a real object comes first
    ([(0, BOX, True)], [(0, BOX, 0.9), (0, NEAR, 0.8), (1, BOX, 0.7)], [IGNORED, IGNORED, NONE],
     [IGNORED, IGNORED, NONE], [False] * 3),
    ([(0, BOX, True), (0, NEAR, False)], [(0, BOX, 0.9), (0, BOX, 0.8)], [1, IGNORED], [1, IGNORED], [False] * 2)])
def test_partners(objects, predictions, of_class, of_any, again):
    assert matched(objects, predictions) == [of_class, of_any, again]


@pytest.mark.parametrize('width, found', [(10, True), (9.99, False)])
def test_the_iou_may_be_exactly_the_threshold(width, found):
    assert (matched([(0, (0., 0., 20., 20.), False)], [(0, (0., 0., width, 20.), 0.9)])[0] == [0]) == found


@pytest.mark.parametrize('scores, right, objects, wanted', [
    ([], [], 0, Best()), ([0.5], [False], 0, Best()), ([], [], 2, Best(None, None, 0., 0.)),
    ([0.5], [False], 2, Best(None, None, 0., 0.)), ([0.5], [True], 1, Best(0.5, 1., 1., 1.)),
    ([0.9, 0.8, 0.7], [True, False, True], 2, Best(0.7, 2 / 3, 1., 0.8)),
    # predictions of the same score pass together
    ([0.9, 0.5, 0.5], [True, True, False], 2, Best(0.5, 2 / 3, 1., 0.8)),
    # of equal F1 the highest threshold: 2 / 3 with one or with four predictions
    ([0.9, 0.8, 0.7, 0.6], [True, False, False, True], 2, Best(0.9, 1., 0.5, 2 / 3))])
def test_the_best_threshold(scores, right, objects, wanted):
    assert best_of(np.array(scores, float), np.array(right, bool), objects) == pytest.approx(wanted)
