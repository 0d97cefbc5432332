"""A work dir in place of config and checkpoint, as a user gives it; arguments in the wrong order."""
import dataclasses
import shutil
from pathlib import Path

import pytest

from helpers.paths import SMALL_CONFIG, TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense._utils.files import RECORD
from xcit_dense.errors import ConfigError
from xcit_dense.train.work_dirs import config_of_run, find_model, publish_config
from xcit_dense.weights import best_checkpoint
from xcit_dense.weights.files import read_notes, write_notes


def test_predict_and_test_of_a_work_dir_agree_with_config_and_checkpoint(trained, demo_data, tmp_path):
    run = shutil.copytree(trained[0], tmp_path / 'moved')
    for model in ((run, ), (TINY_CONFIG, run)):
        run_tool('predict.py', *model, demo_data / 'val2017', '--out', f'out{len(model)}', '--cfg-options',
                 'model.test_cfg.rcnn.score_thr=0', cwd=tmp_path)
    assert (tmp_path / 'out1/results.json').read_text() == (tmp_path / 'out2/results.json').read_text() != '[]'
    before = {*run.iterdir()}
    tested = [run_tool('test.py', *words, cwd=tmp_path).stdout for words in (
        (run, ), (run, '--work-dir', 'mine'), (TINY_CONFIG, run, '--data-root', demo_data, '--work-dir', 'other'))]
    values = [line.partition('coco/bbox_mAP')[2].partition('data_time')[0] for text in tested
              for line in text.splitlines() if 'Epoch(test)' in line and 'bbox_mAP' in line]
    assert len(values) == 3 and len({*values}) == 1
    assert len({*run.iterdir()} - before) == 1 and not (tmp_path / 'work_dirs').exists()


def test_arguments_that_are_missing_or_in_the_wrong_order(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, name = Path(shutil.copytree(trained[0], 'run')), SMALL_CONFIG.stem
    own = str(run / TINY_CONFIG.name)
    (tmp_path / 'photos').mkdir()
    (tmp_path / 'photos/script.py').touch()  # not a config of a training: there is no checkpoint
    best = str(best_checkpoint(run))
    for words, found in ((('run', ), (own, 'run')), (('run', best), (own, best)),
                         (('run', None, 'photos'), (own, 'run')), ((name, 'run', 'photos'), (name, 'run')),
                         (('gone.py', 'x.pth'), ('gone.py', 'x.pth'))):
        assert find_model(*words) == found, words
    for words, error in (
            (('photos', None, 'run'), 'photos has no training. The work dir comes first: run photos'),
            (('photos', ), 'the folder photos has no training. Give CONFIG CHECKPOINT'),
            (('photos', name), 'the folder photos has no training'),
            (('model.onnx', None, 'run'), 'the work dir comes first: run model.onnx'),
            ((name, None, 'photos'), f'an argument is missing after {name}'),
            ((name, None, 'run'), f'an argument is missing after {name}'),
            (('run', 'a.JPG', 'b.jpg'), r'a.JPG is an image, where CHECKPOINT stands.*a folder or a list \(.txt\)'),
            ((best, ), 'is a model file, not a config. CONFIG comes first'),
            (('maskrcnn_xcit_n12_p16_smal', ), f'did you mean {name}')):
        with pytest.raises(ConfigError, match=error):
            find_model(*words)


def test_the_config_of_a_run_is_the_one_that_it_noted(trained, tmp_path):
    """Beside the file of a user with the same name, and that of an earlier run; without notes the only file."""
    run = Path(shutil.copytree(trained[0], tmp_path / 'run'))
    noted = run / read_notes(run).config
    assert noted == run / TINY_CONFIG.name == config_of_run(run)
    (run / 'earlier.py').touch()
    assert config_of_run(run) == noted
    write_notes(run, dataclasses.replace(read_notes(run), config='gone.py'))
    assert config_of_run(run) == noted  # the record of the tool's files knows it
    (run / RECORD).unlink()
    with pytest.raises(ConfigError, match='several configs: earlier.py, '):
        config_of_run(run)
    (run / 'earlier.py').unlink()
    assert config_of_run(run) == noted
    log = run / '20260101_000000'
    log.mkdir()
    shutil.move(noted, log)
    noted.write_text('of a user')
    assert publish_config(log / noted.name, run) == f'{log.name}/{noted.name}' and noted.read_text() == 'of a user'
