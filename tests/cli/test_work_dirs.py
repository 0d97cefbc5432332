"""A work dir in place of config and checkpoint, as a user gives it; arguments in the wrong order."""
import json
import shutil
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from PIL import Image

from helpers.paths import TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense.cli.common import find_model
from xcit_dense.errors import ConfigError


def test_predict_and_test_of_a_work_dir_agree_with_config_and_checkpoint(trained, demo_data, tmp_path):
    """From any folder; the test writes into the work dir."""
    run = shutil.copytree(trained[0], tmp_path / 'moved')
    results = []
    for model in ((run, ), (TINY_CONFIG, run)):
        run_tool('predict.py', *model, demo_data / 'val2017', '--out', f'out{len(model)}', '--cfg-options',
                 'model.test_cfg.rcnn.score_thr=0', cwd=tmp_path)
        results.append(json.loads((tmp_path / f'out{len(model)}/results.json').read_text()))
    assert results[0] == results[1] != []
    before = {*run.iterdir()}
    tested = [run_tool('test.py', *words, cwd=tmp_path).stdout for words in (
        (run, ), (TINY_CONFIG, run, '--data-root', demo_data, '--work-dir', 'other'))]
    values = [line.partition('coco/bbox_mAP')[2].partition('data_time')[0] for text in tested
              for line in text.splitlines() if 'Epoch(test)' in line and 'bbox_mAP' in line]
    assert len(values) == 2 and values[0] == values[1]
    assert len({*run.iterdir()} - before) > 0 and not (tmp_path / 'work_dirs').exists()


@pytest.mark.slow
def test_export_of_a_work_dir(trained_segmentor, demo_data, tmp_path):
    run_tool('export.py', trained_segmentor[0], 'model.onnx', cwd=tmp_path)
    assert onnx.load(tmp_path / 'model.onnx').graph.node
    run_tool('predict.py', 'model.onnx', demo_data / 'images/validation', '--out', 'out', cwd=tmp_path)
    labels = [np.asarray(Image.open(path)) for path in (tmp_path / 'out/labels').iterdir()]
    assert len(labels) > 0 and all(each.ndim == 2 for each in labels)


def test_arguments_that_are_missing_or_in_the_wrong_order(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained[0], 'run')
    (tmp_path / 'photos').mkdir()
    for config, checkpoint, last, words in (
            ('photos', None, dict(images='run'), 'photos is no work dir. The work dir comes first: run photos'),
            ('photos', None, {}, 'the folder photos has no config of a training. Give config and checkpoint'),
            ('model.onnx', None, dict(out='run'), 'The work dir comes first: run model.onnx'),
            (TINY_CONFIG.stem, None, dict(images='photos'), f'{TINY_CONFIG.stem} needs weights.*or the work dir'),
            ('run', TINY_CONFIG.stem, {}, 'run is a folder, not a config. CONFIG comes first')):
        with pytest.raises(ConfigError, match=words):
            find_model(SimpleNamespace(config=config, checkpoint=checkpoint, **last))
