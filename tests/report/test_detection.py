"""The report on a detector: its figures are pycocotools' own, and each prediction finds its object."""
import json
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from report.detections import evaluated, many, metric_of, sample, write_truth

from xcit_dense.report.matching import IGNORED, NONE, best_of, match

pytest.importorskip('mmdet')
KINDS = ['bbox', 'segm']
BOX, NEAR, FAR = (10., 10., 20., 20.), (12., 10., 20., 20.), (60., 60., 20., 20.)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
    """Random detections of 40 images with masks, tested."""
    folder = tmp_path_factory.mktemp('run')
    truth, predictions = many(40)
    file = write_truth(folder, truth, ('cat', 'dog', 'newt', 'yak'))
    samples = [sample(number, found, with_masks=True) for number, found in enumerate(predictions, 1)]
    metric = metric_of(file, metric=KINDS, outfile_prefix=str(folder / 'found'))
    return folder, evaluated([metric], samples, ('cat', 'dog', 'newt', 'yak'))


def evaluation(folder, kind, **params):
    """Evaluate the files of a run with pycocotools alone."""
    with redirect_stdout(StringIO()):
        truth = COCO(folder / 'truth.json')
        found = json.loads((folder / f'found.{kind}.json').read_text())
        for line in found if kind == 'segm' else ():
            line.pop('bbox')
        done = COCOeval(truth, truth.loadRes(found), kind)
        vars(done.params).update(maxDets=[100, 300, 1000], **params)
        done.evaluate(), done.accumulate(), done.summarize()
    return done


def column(content, key):
    return {row.name: row.values[key] for row in content.classes[1]}


@pytest.mark.parametrize('kind', KINDS)
def test_means_of_the_table_are_the_printed_metrics(run, kind):
    """And of each class those of it alone; the class without objects is not in the means, is named, and is last."""
    folder, done = run
    for number, name in ((10, 'cat'), (20, 'dog'), (30, 'newt')):
        alone = evaluation(folder, kind, catIds=[number])
        for key, place in (('AP', 0), ('AP50', 1), ('AR', 6)):
            assert column(done.content, f'{kind}_{key}')[name] == pytest.approx(alone.stats[place], abs=1e-12)
        assert 0 < alone.stats[0] < 1
    for key, metric in (('AP', 'mAP'), ('AP50', 'mAP_50')):
        values = [value for value in column(done.content, f'{kind}_{key}').values() if value is not None]
        assert len(values) == 3 and round(np.mean(values), 3) == done.metrics[f'coco/{kind}_{metric}']
    rows = done.content.classes[1]
    assert rows[-1].name == 'yak' and rows[-1].values['objects'] == 0 and 'not in the means' in rows[-1].note
    assert any('yak' in note for note in done.content.notes)
    first = [row.values['bbox_AP'] for row in rows[:-1]]
    assert first == sorted(first)


def test_counts_and_best_thresholds_follow_the_matches_of_pycocotools(run):
    folder, done = run
    by_hand = evaluation(folder, 'bbox')
    images, some_ignored = len(by_hand.params.imgIds), False
    for place, name in enumerate(('cat', 'dog', 'newt')):
        parts = [part for part in by_hand.evalImgs[place * 4 * images:place * 4 * images + images] if part]
        ignored = np.concatenate([part['dtIgnore'][0] for part in parts])
        scores = np.concatenate([part['dtScores'] for part in parts])[~ignored]
        right = np.concatenate([part['dtMatches'][0] for part in parts])[~ignored] > 0
        objects = sum((part['gtIgnore'] == 0).sum() for part in parts)
        some_ignored = some_ignored or ignored.any()
        assert column(done.content, 'objects')[name] == objects == done.content.confusion.counts[place].sum()
        assert column(done.content, 'images')[name] == sum((part['gtIgnore'] == 0).any() for part in parts)
        best = max((2 * right[scores >= score].sum() / ((scores >= score).sum() + objects), score)
                   for score in {*scores})
        got = {key: column(done.content, key)[name] for key in ('F1', 'threshold', 'precision', 'recall')}
        assert (got['F1'], got['threshold']) == pytest.approx(best)
        above = scores >= got['threshold']
        assert got['precision'] == pytest.approx(right[above].mean())
        assert got['recall'] == pytest.approx(right[above].sum() / objects)
        # what is on the diagonal has been found with a score of 0.3
        assert done.content.confusion.counts[place, place] == right[scores >= 0.3].sum()
    assert some_ignored
    assert not list(done.content.pictures)  # of images that are gone: a warning for each of the worst
    assert sum('no picture of' in said for said in done.said) == 24


def test_objects_are_grouped_by_size(tmp_path):
    """Here the smallest is missed, and the largest is taken for another class; a crowd region does not count."""
    boxes = [(50. * place, 0., 5. * place, 20. * place) for place in range(1, 5)]
    file = write_truth(tmp_path, [[*((0, *box) for box in boxes), (0, 0., 60., 50., 50., True)]])
    found = [(int(place == 3), *box, 0.9) for place, box in enumerate(boxes) if place]
    content = evaluated([metric_of(file, metric='bbox')], [sample(1, found)]).content
    rows = [(row.name, *(row.values[key] for key in ('objects', 'found', 'wrong_class', 'missed', 'share')))
            for row in content.sizes[1]]
    assert rows == [('10 to 10', 1, 0, 0, 1, 100), ('20 to 20', 1, 1, 0, 0, 0), ('30 to 30', 1, 1, 0, 0, 0),
                    ('40 to 40', 1, 0, 1, 0, 0)]


@pytest.mark.parametrize('objects, predictions, of_class, of_any', [
    ([], [], [], []), ([], [(0, BOX, 0.9)], [NONE], [NONE]),
    ([(0, BOX, False)], [(0, NEAR, 0.9)], [0], [0]), ([(0, BOX, False)], [(0, FAR, 0.9)], [NONE], [NONE]),
    *(([(0, BOX, False)], [(0, (10., 10., width, 20.), 0.9)], found, found)  # half of the area is enough
      for width, found in ((10., [0]), (9.99, [NONE]))),
    # the higher score takes the object, whatever the IoU; the second prediction is one too many
    ([(0, BOX, False)], [(0, BOX, 0.5), (0, NEAR, 0.9)], [NONE, 0], [NONE, 0]),
    # of two objects the nearer; of equal ones the last, as pycocotools
    ([(0, NEAR, False), (0, BOX, False)], [(0, BOX, 0.9)], [1], [1]),
    ([(0, BOX, False), (0, BOX, False)], [(0, BOX, 0.9)], [1], [1]),
    # of equal scores the first prediction
    ([(0, BOX, False)], [(0, NEAR, 0.9), (0, BOX, 0.9)], [0, NONE], [0, NONE]),
    # another class only takes what is left, also with a higher score
    ([(0, BOX, False)], [(1, BOX, 0.9)], [NONE], [0]),
    ([(0, BOX, False)], [(1, BOX, 0.9), (0, NEAR, 0.4)], [NONE, 0], [NONE, 0]),
    # below the score, a prediction takes no object from another class
    ([(0, BOX, False)], [(1, BOX, 0.9), (0, NEAR, 0.2)], [NONE, 0], [0, NONE]),
    ([(0, BOX, False)], [(0, BOX, 0.2)], [0], [NONE]),
    # a crowd region takes any number of its class and none of others; a real object comes first
    ([(0, BOX, True)], [(0, BOX, 0.9), (0, NEAR, 0.8), (1, BOX, 0.7)], [IGNORED, IGNORED, NONE],
     [IGNORED, IGNORED, NONE]),
    ([(0, BOX, True), (0, NEAR, False)], [(0, BOX, 0.9), (0, BOX, 0.8)], [1, IGNORED], [1, IGNORED])])
def test_partners(objects, predictions, of_class, of_any):
    """Objects: class, box, and whether it is a crowd region; predictions: class, box, score."""
    labels, boxes, crowd = zip(*objects, strict=True) if objects else ((), (), ())
    guesses, found, scores = zip(*predictions, strict=True) if predictions else ((), (), ())
    done = match(np.array(boxes, float).reshape(-1, 4), np.array(labels, int), np.array(crowd, bool),
                 np.array(found, float).reshape(-1, 4), np.array(guesses, int), np.array(scores, float))
    assert [part.tolist() for part in done] == [of_class, of_any]


@pytest.mark.parametrize('scores, right, objects, wanted', [
    ([], [], 0, (None, ) * 4), ([0.5], [False], 0, (None, ) * 4), ([], [], 2, (None, None, 0., 0.)),
    ([0.5], [False], 2, (None, None, 0., 0.)), ([0.5], [True], 1, (0.5, 1., 1., 1.)),
    ([0.9, 0.8, 0.7], [True, False, True], 2, (0.7, 2 / 3, 1., 0.8)),
    # predictions of the same score pass together
    ([0.9, 0.5, 0.5], [True, True, False], 2, (0.5, 2 / 3, 1., 0.8)),
    # of equal F1 the highest threshold: 2 / 3 with one or with four predictions
    ([0.9, 0.8, 0.7, 0.6], [True, False, False, True], 2, (0.9, 1., 0.5, 2 / 3))])
def test_the_best_threshold(scores, right, objects, wanted):
    assert best_of(np.array(scores, float), np.array(right, bool), objects) == pytest.approx(wanted)
