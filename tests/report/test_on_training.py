"""The metrics on training images that a report has beside those of the test, and what it concludes."""
import re

import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.report.on_training import verdict


@pytest.mark.parametrize('name, tested, trained, said', (
    ('coco/bbox_mAP', 0.3, 0.8, 'on 9 images coco/bbox_mAP is 0.8, on the test images 0.3: .* more data would help'),
    ('mIoU', 30., 80., 'mIoU is 80, on the test images 30: .* more data would help'),
    ('coco/bbox_mAP', 0.3, 0.35, 'a longer training helps before more data does'),
    ('coco/bbox_mAP', 0., 0., 'a longer training'),
    ('accuracy/top1', 95., 97., 'about as good on both'), ('coco/bbox_mAP', -1., 0.5, '$'),
    ('mIoU', float('nan'), 50., '$'), ('mine', 0.1, 0.9, '$')))
def test_what_is_wanted(name, tested, trained, said):
    found = verdict({'other': 1, name: tested}, {name: trained}, '9 images')
    assert re.search(said, found) and bool(found) == (said != '$')


@pytest.mark.parametrize('config, run, options', (
    (TINY_CONFIG, 'trained', ('test_dataloader.dataset.ann_file=annotations/instances_train2017.json',
                              'test_dataloader.dataset.data_prefix.img=train2017',
                              'test_evaluator.ann_file={root}/annotations/instances_train2017.json')),
    (TINY_SEG_CONFIG, 'trained_segmentor', ('test_dataloader.dataset.data_prefix.img_path=images/training',
                                            'test_dataloader.dataset.data_prefix.seg_map_path=annotations/training'))))
def test_they_are_those_of_a_test_on_the_training_images(config, run, options, demo_data, tmp_path, request):
    """Which are tested here."""
    done = run_tool('test.py', config, request.getfixturevalue(run)[0], '--data-root', demo_data, '--work-dir',
                    tmp_path, '--report', '--cfg-options', *(option.format(root=demo_data) for option in options))
    page = (tmp_path / 'report/report.html').read_text()
    cells = re.findall(r'</th><td class="n">([^<]+)</td><td class="n">([^<]+)</td></tr>', page)
    assert len(cells) > 2 and all(tested == trained for tested, trained in cells), cells
    assert 'the same on 6 training images:' in done.stdout
