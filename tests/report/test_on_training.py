"""The metrics on training images that a report has beside those of the test, and what it concludes."""
import re

import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.data.files import read_json
from xcit_dense.report.on_training import verdict, write_part


@pytest.mark.parametrize('name, tested, trained, said', (
    ('coco/bbox_mAP', 0.35, 0.6, '^on 9 images coco/bbox_mAP is 0.6, on the test images 0.35: .* more data would help'),
    ('mIoU', 45., 60., 'mIoU is 60, on the test images 45: .* a longer training helps before more data does'),
    ('mIoU', 69., 69.9, 'a longer training'), ('coco/bbox_mAP', 0., 0., 'a longer training'),
    ('accuracy/top1', 92., 97.5, 'more data would help'), ('accuracy/top1', 93., 97., 'about as good on both'),
    ('mIoU', 68., 72., 'about as good on both'),
    ('coco/segm_mAP', 0.95, 0.7, 'about as good on both'),  # better than on those of the training
    ('coco/bbox_mAP', -1., 0.5, '$'), ('mIoU', float('nan'), 50., '$'), ('mine', 0.1, 0.9, '$')))
def test_what_is_wanted(name, tested, trained, said):
    found = verdict({'other': 1, name: tested}, {name: trained}, '9 images')
    assert re.search(said, found) and bool(found) == (said != '$')


def test_a_part_of_a_file_has_the_objects_of_its_images(tmp_path):
    whole = dict(images=[dict(id=number) for number in (4, 7, 9)], categories=[dict(id=9)],
                 annotations=[dict(id=number, image_id=image) for number, image in enumerate((7, 9, 4, 9), 4)])
    assert read_json(write_part(whole, {4, 9}, tmp_path / 'a.json')) == dict(
        images=[dict(id=4), dict(id=9)], categories=[dict(id=9)],
        annotations=[dict(id=5, image_id=9), dict(id=6, image_id=4), dict(id=7, image_id=9)])


@pytest.mark.parametrize('config, run, options', (
    (TINY_CONFIG, 'trained', ('test_dataloader.dataset.ann_file=annotations/instances_train2017.json',
                              'test_dataloader.dataset.data_prefix.img=train2017',
                              'test_evaluator.ann_file={root}/annotations/instances_train2017.json')),
    (TINY_SEG_CONFIG, 'trained_segmentor', ('test_dataloader.dataset.data_prefix.img_path=images/training',
                                            'test_dataloader.dataset.data_prefix.seg_map_path=annotations/training'))))
def test_they_are_those_of_a_test_on_the_training_images(config, run, options, demo_data, tmp_path, request):
    done = run_tool('test.py', config, request.getfixturevalue(run)[0], '--data-root', demo_data, '--work-dir',
                    tmp_path, '--report', '--cfg-options', *(option.format(root=demo_data) for option in options))
    page = (tmp_path / 'report/report.html').read_text()
    cells = re.findall(r'</th><td class="n">([^<]+)</td><td class="n">([^<]+)</td></tr>', page)
    assert len(cells) > 2 and all(tested == trained for tested, trained in cells), cells
    assert 'the same on 6 training images:' in done.stdout
    assert (f'{demo_data}/annotations/instances_train2017.json' in page) == (run == 'trained')
