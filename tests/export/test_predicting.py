"""Exported files compared with their checkpoints: results of `predict`, `test` and `load`."""
import json
import re

import cv2
import numpy as np
import pytest
from pycocotools import mask as mask_api

import xcit_dense
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool

pytestmark = [pytest.mark.filterwarnings('ignore')]


def differing(one, other, folder):
    """Return the largest share of the pixels of a picture that two folders draw in other colours."""
    shares = []
    for name in sorted(path.name for path in (folder / one).glob('*.jpg')):
        pair = [cv2.imread(str(folder / part / name)).astype(int) for part in (one, other)]
        shares.append((np.abs(pair[0] - pair[1]).max(-1) > 60).mean())
    return max(shares)


@pytest.mark.parametrize('runtime', ('onnxruntime', 'openvino'))
def test_a_detector_writes_what_its_checkpoint_does(runtime, exported, trained, demo_data, tmp_path):
    pytest.importorskip(runtime)
    run_tool('predict.py', TINY_CONFIG, trained[0], demo_data / 'val2017', '--out', tmp_path / 'a')
    run_tool('predict.py', exported, demo_data / 'val2017', '--out', tmp_path / 'b', '--runtime', runtime)
    wanted, found = ([sorted(json.loads((tmp_path / part / 'results.json').read_text()),
                             key=lambda r: (r['image_id'], -round(r['score'], 4), r['category_id'], r['bbox']))
                      for part in 'ab'])
    assert len(wanted) == len(found) > 10
    for one, other in zip(wanted, found, strict=True):
        assert {key: one[key] for key in ('image_id', 'file_name', 'category_id', 'category_name')} == {
            key: other[key] for key in ('image_id', 'file_name', 'category_id', 'category_name')}
        assert abs(one['score'] - other['score']) < 1e-4 and np.allclose(one['bbox'], other['bbox'], atol=0.05)
        pair = [mask_api.decode(record['segmentation']) for record in (one, other)]
        assert (pair[0] != pair[1]).mean() < 1e-3
    classes = [json.loads((tmp_path / part / 'classes.json').read_text()) for part in 'ab']
    assert classes[0] == classes[1]
    assert differing('a', 'b', tmp_path) < 0.01


@pytest.mark.parametrize('runtime', ('onnxruntime', 'openvino'))
def test_a_segmentor_writes_what_its_checkpoint_does(runtime, exported_segmentor, trained_segmentor, demo_data,
                                                     tmp_path):
    pytest.importorskip(runtime)
    images = demo_data / 'images/validation'
    run_tool('predict.py', TINY_SEG_CONFIG, trained_segmentor[0], images, '--out', tmp_path / 'a')
    run_tool('predict.py', exported_segmentor, images, '--out', tmp_path / 'b', '--runtime', runtime)
    for path in (tmp_path / 'a/labels').iterdir():
        pair = [cv2.imread(str(tmp_path / part / 'labels' / path.name), cv2.IMREAD_UNCHANGED) for part in 'ab']
        assert pair[0].shape == pair[1].shape and (pair[0] != pair[1]).mean() < 1e-3
    classes = [json.loads((tmp_path / part / 'classes.json').read_text()) for part in 'ab']
    assert classes[0] == classes[1]
    assert differing('a', 'b', tmp_path) < 0.01


@pytest.mark.parametrize('task, words', (('detection', 'Average'), ('segmentation', 'mIoU: +[0-9.]+')))
def test_the_tables_are_the_same(task, words, trained, trained_segmentor, demo_data, tmp_path, request):
    config, run, fixture = ((TINY_CONFIG, trained, 'exported') if task == 'detection' else
                            (TINY_SEG_CONFIG, trained_segmentor, 'exported_segmentor'))
    tables = [re.findall(rf'.*{words}.*', re.sub(r'\S*time: \S+|^.* - ', '', run_tool(
        'test.py', config, source, '--data-root', demo_data, '--work-dir', tmp_path / 'run').stdout, flags=re.M))
        for source in (run[0], request.getfixturevalue(fixture))]
    assert tables[0] == tables[1] and tables[0]


def test_scores_and_arrays_from_python(exported_segmentor, trained_segmentor, demo_data):
    path = demo_data / 'val2017/000000000001.jpg'
    wanted = xcit_dense.load(TINY_SEG_CONFIG, trained_segmentor[0])(path)
    found = xcit_dense.load(exported_segmentor)(path)
    same = found.labels == wanted.labels
    assert same.mean() > 0.999 and np.allclose(found.scores[same], wanted.scores[same], atol=1e-4)
