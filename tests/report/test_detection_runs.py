"""The report on a detector in unusual tests: other metrics, several of them, several processes, lost files."""
import os

import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as mask_api
from pycocotools.cocoeval import COCOeval
from report.detections import HEIGHT, WIDTH, evaluated, evaluated_in_parts, many, metric_of, sample, write_truth
from report.tested import Counting

from xcit_dense.draw.classes import class_colours

CocoMetric = pytest.importorskip('mmdet.evaluation').CocoMetric
TRUTH = [(0, 10, 10, 30, 30)], [(1, 20, 20, 40, 40), (2, 60, 60, 20, 20)]
BOX, NEAR, FAR = (10, 10, 20, 20), (12, 10, 20, 20), (60, 60, 20, 20)
FOUND = [(0, 11, 10, 30, 30, 0.9), (1, 60, 60, 20, 20, 0.8)], [(2, 20, 20, 40, 40, 0.7), (1, 21, 20, 40, 40, 0.6)]


class OwnEvaluation(CocoMetric):
    """A metric of a user, which calls pycocotools in its own way."""

    def compute_metrics(self, results):
        metrics = super().compute_metrics(results)
        again = COCOeval(cocoGt=self._coco_api, cocoDt=self._coco_api.loadRes([
            dict(image_id=1, category_id=10, bbox=[11, 10, 30, 30], score=1)]), iouType='bbox')
        again.evaluate(), again.accumulate()
        again.params.iouType = 'keypoints'
        return dict(metrics, own=again.eval['recall'].max())


def run(tmp_path, *metrics, truth=TRUTH, found=FOUND, classes=('cat', 'dog', 'newt'), **more):
    """Test predictions; metrics are options of a `CocoMetric`, or metrics."""
    file = write_truth(tmp_path, truth, classes, with_files=True)
    samples = [sample(number, objects, with_masks=True, folder=tmp_path) for number, objects in enumerate(found, 1)]
    built = [metric_of(file, **part) if isinstance(part, dict) else part for part in metrics or [{}]]
    return evaluated(built, samples, classes, **more)


@pytest.mark.parametrize('metric, words', [
    (Counting(), ('Counting', "type='CocoMetric'")), (dict(metric='proposal'), ()),
    (dict(format_only=True, outfile_prefix='found'), ())])
def test_a_test_without_a_coco_metric_has_no_report_but_a_word(metric, words, tmp_path, monkeypatch):
    """Or with one that has no figures of classes."""
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path, metric)
    assert done.content is None and 'no report' in done.said[-1] and all(word in done.said[-1] for word in words)
    assert not words or done.metrics == {'own/count': 2}
    done = run(tmp_path, found=[(), ()])
    assert done.content is None and 'found no object in any image' in done.said[-1]


@pytest.mark.parametrize('metrics, kinds', [
    ([dict(metric=['segm', 'proposal', 'bbox'])], ['bbox', 'segm']), ([dict(metric='segm')], ['segm']),
    ([Counting(), dict(metric='segm'), dict(metric='bbox')], ['segm']),
    ([dict(metric='bbox', classwise=True), dict(metric='proposal', prefix='more')], ['bbox'])])
def test_figures_are_those_of_the_first_coco_metric(tmp_path, metrics, kinds):
    for number, metric in enumerate(metrics):
        if isinstance(metric, dict):
            metric['prefix'] = f'm{number}'
    done = run(tmp_path, *metrics)
    keys = [column.key for column in done.content.classes[0]]
    assert [key for key in keys if key.endswith('_AP')] == [f'{kind}_AP' for kind in kinds]
    words = f'the metric m{int(isinstance(metrics[0], Counting))}, one of {len(metrics)} metrics'
    assert any(words in note for note in done.content.notes) == (len(metrics) > 1)
    for kind in kinds:
        mean = np.mean([row.values[f'{kind}_AP'] for row in done.content.classes[1]])
        assert round(mean, 3) in [value for name, value in done.metrics.items() if name.endswith(f'{kind}_mAP')]


def test_a_metric_may_call_pycocotools_itself(tmp_path):
    """By names of the arguments, for other types of IoU; that is no reason to lose its figures."""
    file = str(write_truth(tmp_path, TRUTH))
    assert run(tmp_path, OwnEvaluation(file, metric='proposal')).content is None
    metric = OwnEvaluation(file, metric='bbox')
    before, done = metric.compute_metrics, run(tmp_path, metric)
    assert done.metrics['coco/own'] == 1 and metric.compute_metrics == before  # it is given back
    assert [column.key for column in done.content.classes[0] if column.key.endswith('_AP')] == ['bbox_AP']


def test_other_thresholds_have_no_column_for_a_missing_one(tmp_path):
    done = run(tmp_path, dict(metric='bbox', iou_thrs=np.array([0.6, 0.8]), proposal_nums=(1, 5, 10)))
    columns = {column.key: column for column in done.content.classes[0]}
    assert 'bbox_AP50' not in columns and 'IoU 0.6 to 0.8' in columns['bbox_AP'].explanation
    assert 'at most 10 per image and class' in columns['bbox_AR'].explanation


def test_numbers_of_predictions_are_those_of_the_printed_metrics(tmp_path):
    """pycocotools counts 100 per image for AP, and the third number of the metric for AP50."""
    truth, found = many(20, seed=2)
    for numbers in ((1, 2, 100), (1, 100, 300)):
        done = run(tmp_path, dict(metric='bbox', iou_thrs=np.array([0.3, 0.5, 0.7]), proposal_nums=numbers),
                   truth=truth, found=[part + [(0, 1, 1, 30, 30, 0.99)] * (numbers[2] // 2 - 40) for part in found])
        for key, metric in (('AP', 'mAP'), ('AP50', 'mAP_50')):
            mean = np.mean([row.values[f'bbox_{key}'] for row in done.content.classes[1]])
            assert round(mean, 3) == done.metrics[f'coco/bbox_{metric}'] > 0


def test_classes_in_another_order_than_their_ids_and_than_the_colours(tmp_path):
    """mmdet numbers them as the file lists them; pycocotools' arrays are in the order of the ids."""
    file = write_truth(tmp_path, TRUTH)
    text = file.read_text().replace('"id": 10, "name": "cat"', '"id": 99, "name": "cat"')
    file.write_text(text.replace('"category_id": 10,', '"category_id": 99,'))
    samples = [sample(number, found) for number, found in enumerate(FOUND, 1)]
    for palette, wanted in (([(1, 0, 0), (2, 0, 0), (3, 0, 0)], dict(newt=(1, 0, 0), cat=(2, 0, 0), dog=(3, 0, 0))),
                            (None, None)):
        content = evaluated([metric_of(file)], samples, ('newt', 'cat', 'dog'), palette=palette).content
        rows = {row.name: row.values['bbox_AP'] for row in content.classes[1]}
        assert rows['cat'] > 0.8 and rows['newt'] == 0
        assert content.confusion.names == ['cat', 'dog', 'newt', 'background']
        assert content.colours == (wanted or dict(zip(('newt', 'cat', 'dog'), class_colours('abc'), strict=True)))


def test_mistakes_of_every_kind(tmp_path):
    """A missed one, a wrong class, one found twice, one invented; images with missed ones come first."""
    truth = [(0, *BOX)], [], [(0, *BOX), (1, *FAR), (2, 60, 5, 30, 30), (0, 5, 60, 30, 30, 'crowd')]
    found = [(0, *BOX, 0.9)], [(2, *BOX, 0.9)] * 4, [
        (0, *BOX, 0.9), (0, *NEAR, 0.8), (2, *FAR, 0.7), (1, 30, 30, 10, 10, 0.6), (0, 8, 62, 20, 20, 0.5),
        (2, 60, 5, 30, 30, 0.29)]
    content = run(tmp_path, truth=truth, found=found).content
    assert content.confusion.counts.tolist() == [[2, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 1, 4, 0]]
    first, second, third = content.images[1]
    assert first.name.endswith('3.png') and second.name.endswith('2.png') and third.values['mistakes'] == 0
    assert first.values == dict(mistakes=4, objects=3, found=1, missed=1, wrong_class=1, false_positives=2)
    pictures = list(content.pictures)
    assert [os.path.basename(picture.path) for picture in pictures] == ['3.png', '2.png']  # the other has no mistake
    assert pictures[0].caption == '3 objects, 1 missed, 1 of a wrong class, 2 false positives'
    assert dict(content.facts)['objects'] == '4 and 1 region with iscrowd'


def test_images_that_were_not_tested(tmp_path):
    done = run(tmp_path, truth=[*TRUTH, [(0, 5, 5, 9, 9)]], found=FOUND[:1])
    assert [(row.name, row.values['missed']) for row in done.content.images[1][:2]] == [('2.png', 2), ('3.png', 1)]
    assert any('2 images of' in note and 'the id 2. ' in note for note in done.content.notes)


def test_pictures_have_both_sides_and_skip_unreadable_files(tmp_path):
    done = run(tmp_path)
    pictures = list(done.content.pictures)
    assert [os.path.basename(picture.path) for picture in pictures] == ['2.png', '1.png']
    assert pictures[0].caption == '2 objects, 1 missed, 1 false positive'
    for picture in pictures:
        assert picture.truth.shape == picture.prediction.shape == (HEIGHT, WIDTH, 3)
        assert (picture.truth != picture.prediction).any()
    done = run(tmp_path)
    Image.new('RGB', (50, 40)).save(tmp_path / '2.png')  # of another size: without masks
    assert [picture.truth.shape for picture in done.content.pictures] == [(40, 50, 3), (HEIGHT, WIDTH, 3)]
    done = run(tmp_path)
    (tmp_path / '2.png').write_bytes(b'x')
    assert [picture.path[-5:] for picture in done.content.pictures] == ['1.png']
    assert '2.png' in done.said[-1]


def test_marks_name_the_mistake_and_masks_are_decoded_one_by_one(tmp_path, monkeypatch):
    """Those of 500 objects in an aerial picture would take 12 GB."""
    said, drawn, decoded, decode = [], [], [], mask_api.decode
    monkeypatch.setattr(mask_api, 'decode', lambda code: decoded.append(code) or decode(code))

    def draw(picture, boxes, labels, names, colours, masks=None, scores=None, marks=None):
        said.append(([names[label] for label in labels], marks))
        drawn.append(masks)
        assert [*map(tuple, colours[:3])] == class_colours(('cat', 'dog', 'newt'))

    monkeypatch.setattr('xcit_dense.report.matching.draw_objects', draw)
    done = run(tmp_path, truth=[[*TRUTH[1][::-1], (0, 5, 5, 12, 12, 'crowd')]],
               found=[[(1, 20, 20, 40, 40, .9), (1, 21, 20, 40, 40, .8), (0, 60, 60, 20, 20, .7), (2, 80, 5, 9, 9, .6),
                       (0, 6, 6, 10, 10, .5), (2, 80, 5, 9, 9, .2)]])
    list(done.content.pictures)
    assert said == [(['newt', 'dog', 'cat (crowd)'], ['taken for cat', '', '']),
                    (['dog', 'dog', 'cat', 'newt', 'cat'], ['', 'false positive', 'wrong class', 'false positive', ''])]
    assert not decoded and [masks(place).sum() for masks, place in zip(drawn, (0, 3), strict=True)] == [400, 81]
    assert len(decoded) == 2


@pytest.mark.slow
def test_mmdet_evaluates_with_several_processes(tmp_path):
    plain, several = (run(tmp_path, dict(metric=['bbox', 'segm'], use_mp_eval=flag)) for flag in (False, True))
    assert plain.metrics == several.metrics and plain.content.classes == several.content.classes


def test_two_processes_make_one_report(tmp_path, two_processes):
    """As one process does; of three images, the sampler gives one twice."""
    truth, found = many(3, seed=4)
    samples = [sample(number, objects, with_masks=True) for number, objects in enumerate(found, 1)]
    file = write_truth(tmp_path, truth)
    first, second = two_processes.in_group(evaluated_in_parts, file, samples)
    assert second is None and repr(first) == repr(evaluated_in_parts(file, samples)) and len(first[1][1]) == 3
