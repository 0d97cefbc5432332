"""What a training wrote stays as it is, whatever is run on its work dir afterwards."""
import shutil
import time

import pytest

from helpers.models import assert_equal
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import files_in, run_tool
from xcit_dense._utils.files import RECORD, OwnFiles
from xcit_dense.weights import newest_checkpoint, read_checkpoint

# OWN is the config in the work dir RUN, IMAGES the first validation image of DATA.
TEST = 'test.py', 'CONFIG', 'RUN', '--data-root', 'DATA', '--work-dir', 'RUN'
TEST_OWN = 'test.py', 'OWN', 'RUN', '--work-dir', 'RUN'
PREDICT = 'predict.py', 'OWN', 'RUN', 'IMAGES', '--out', 'RUN'
TRAIN = 'train.py', 'OWN', '--work-dir'
#: Tools with their options that any work dir is for; the third stops with an error, as it should.
ALL = (
    (*TEST, '--report', '--batch-size', 1, '--workers', 0), (*TEST_OWN, '--cfg-options', 'randomness.seed=1'),
    (*TRAIN, 'RUN'), ('plot_curves.py', 'RUN'), ('convert_checkpoint.py', 'RUN', 'RUN/weights.bin', '--to', 'dense'),
    (*TEST, '--report', 'RUN/own', '--overwrite'), (*TEST, '--show-dir', 'RUN/shown', '--dtype', 'bfloat16'),
    ('check_data.py', 'OWN', '--out', 'RUN'), ('attention.py', 'RUN', 'IMAGES', '--out', 'RUN'),
    (*TRAIN, 'RUN/more', '--resume', 'RUN'), (*TRAIN, 'RUN/new', '--init-from', 'RUN'), (*TEST, '--sizes', 48, 64))
DENSE = (
    PREDICT, (*TRAIN, 'RUN', '--suggest', 'RUN/suggested.txt'),
    ('measure.py', 'OWN', '--data-root', 'DATA', '--images', 3, '--out', 'RUN/measured.json'),
    (*TEST, '--tta'), ('export.py', 'OWN', 'RUN', 'RUN/model.onnx'),
    ('test.py', 'OWN', 'RUN/model.onnx', '--work-dir', 'RUN', '--runtime', 'onnxruntime'),
    ('predict.py', 'RUN/model.onnx', 'IMAGES', '--out', 'RUN/exported'))
CLASSIFIER = (
    (*TEST, '--size', 24, '--crop-ratio', 0.8), (*TEST, '--knn', 2, '--report'),
    ('classify.py', 'RUN', 'IMAGES', '--out', 'RUN/classified.json'))


def state(run):
    """The files of a work dir, and which of them are loaded and resumed."""
    files = {name: content for name, content in files_in(run).items()
             if name not in (RECORD, '.running')}  # what was written last, and by which process
    return files, (OwnFiles(run, 'train').names(), newest_checkpoint(run), newest_checkpoint(run, to_resume=True))


@pytest.mark.parametrize('config, rows', (
    (TINY_SEG_CONFIG, (*ALL[1:4], PREDICT)), pytest.param(TINY_CONFIG, (*ALL, *DENSE), marks=pytest.mark.slow),
    pytest.param(TINY_SEG_CONFIG, DENSE, marks=pytest.mark.slow),
    pytest.param(TINY_CLS_CONFIG, (ALL[0], *ALL[7:9], *CLASSIFIER), marks=pytest.mark.slow)))
def test_a_work_dir_after_each_tool(config, rows, demo_data, class_folders, tmp_path):
    """And the training continues as it would have before."""
    data, image = ((class_folders, 'val/blue/0.png') if config == TINY_CLS_CONFIG else
                   (demo_data, 'val2017/000000000001.jpg'))
    run, found = tmp_path / 'run', []
    run_tool('train.py', config, '--data-root', data, '--work-dir', run, '--image-size', 64)
    before = shutil.copytree(run, tmp_path / 'before')
    time.sleep(1)  # the folder of a log is named by the second
    words, (files, meaning) = dict(CONFIG=config, OWN=run / config.name, DATA=data, IMAGES=data / image), state(run)
    assert config.name in files and meaning[0] == {config.name}
    for row in rows:
        done = run_tool(*(words.get(word, str(word).replace('RUN', str(run))) for word in row), check=False)
        assert done.returncode == (row == ALL[2]) and 'Traceback' not in done.stdout, done.stdout[-3000:]
        after, its_meaning = state(run)
        assert after.items() >= files.items() and its_meaning == meaning, row
    length = 'max_iters=5' if config == TINY_SEG_CONFIG else 'max_epochs=3'
    for each in (before, run):
        run_tool('train.py', each / config.name, '--work-dir', each, '--resume', '--cfg-options', f'train_cfg.{length}')
        found.append(read_checkpoint(newest_checkpoint(each)))
    assert found[0]['meta']['iter'] == found[1]['meta']['iter'] > 4
    assert_equal(found[0]['state_dict'], found[1]['state_dict'], 'weights')
