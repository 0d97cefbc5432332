"""Which images are kept for drawing, with which objects and captions; and what is counted."""
import json

import pytest

from helpers.faulty_data import ANNOTATIONS, coco, rewrite
from xcit_dense.data.check import Finding, check_data_set
from xcit_dense.data.check.findings import choose_samples, each_kind_first


def finding(kind, number):
    return Finding(kind, 'x', 'annotations', number, number, 'some')


def test_sixteen_images_with_findings_and_sixteen_without():
    """Every kind is among the first; a chosen image has all its captions; the others are spread over the data."""
    found = [(number, finding('area-empty', number)) for number in range(20)]
    found += [(19, finding('rle-size', 50)), (3, finding('box-empty', 51)), (19, finding('box-empty', 52))]
    chosen = choose_samples(found, list(range(100, 200)) + [3])
    captions = {image: [int(caption.split()[1]) for caption in words] for image, words in chosen.items()}
    assert list(captions.items())[:16] == [
        (19, [50, 52, 19]), (0, [0]), (3, [51, 3]), *((number, [number]) for number in (1, 2, *range(4, 15)))]
    good = list(captions)[16:]
    assert len(good) == 16 and good[0] == 100 and good[-1] == 199 and not any(captions[image] for image in good)
    assert all(6 <= b - a <= 7 for a, b in zip(good[:-1], good[1:], strict=True))
    assert list(choose_samples([], [5, 6])) == [5, 6] and choose_samples([], []) == {}


def test_the_first_of_each_kind_goes_first_and_errors_before_warnings():
    kinds = ('area-empty', 'area-empty', 'rle-counts', 'box-empty', 'rle-counts', 'rle-size')
    assert each_kind_first([finding(kind, i) for i, kind in enumerate(kinds)]) == [2, 5, 0, 3, 4, 1]


@pytest.mark.parametrize('box, drawn', (
    ([0, 0, 99999, 5], True), ([0, 0, 100000, 5], False), ([-100000, 0, 5, 5], False), ([5, 5, -1, 4], False),
    ([5, 5, 0, 4], True)))
def test_boxes_with_faults_are_drawn_where_they_can_be(root, box, drawn):
    """Marked, and without a mask if none is read; the others do not change."""
    rewrite(root, lambda content: content['annotations'][0].update(bbox=box))
    content = json.loads((root / ANNOTATIONS).read_text())
    image = content['annotations'][0]['image_id']
    report = check_data_set(coco(root))
    sample = report.samples[0]
    assert sample['file'].endswith(f'{image:012d}.jpg') and len(sample['captions']) == 1
    wanted = [a for a in content['annotations'] if a['image_id'] == image][not drawn:]
    assert [a['bbox'] for a in sample['annotations']] == [a['bbox'] for a in wanted]
    assert [a['marked'] for a in sample['annotations']] == [a['bbox'] == box for a in wanted]
    assert [a['segmentation'] for a in sample['annotations']] == [
        None if a['bbox'] == box else a['segmentation'] for a in wanted]
    assert not any(a['marked'] for sample in report.samples[1:] for a in sample['annotations'])


def test_what_is_no_record_is_said_of_no_image(root):
    rewrite(root, lambda content: content['annotations'].append(5))
    report = check_data_set(coco(root))
    assert report.findings and not any(sample['captions'] for sample in report.samples)


def test_counts_are_those_of_the_file(root):
    """Records that cannot be used count too, where they are records of the file; images without annotations do once."""
    def change(content):
        content['images'] += [None, dict(content['images'][0], id=70, file_name='000000000001.jpg')]
        content['annotations'] += [None, dict(content['annotations'][0], id=71, image_id=77)]
        content['categories'].append(dict(id=9, name='none'))
    before = json.loads((root / ANNOTATIONS).read_text())
    rewrite(root, change)
    used = {a['image_id'] for a in before['annotations']}
    assert check_data_set(coco(root)).counts == {
        'images': 8, 'images without annotations': 7 - len(used), 'annotations': len(before['annotations']) + 2,
        'categories': 6}
