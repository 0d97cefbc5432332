"""Trainings with a teacher: what the loss is, what stays unchanged, and exact resume."""
import copy

import pytest
import torch

from helpers.models import assert_equal
from helpers.runs import At, assert_same_run, terminate, train
from xcit_dense.errors import Stopped
from xcit_dense.train import build_runner
from xcit_dense.train.sharding import unwrapped
from xcit_dense.weights import read_checkpoint

pytestmark = [pytest.mark.xdist_group('classifiers'), pytest.mark.filterwarnings('ignore')]


@pytest.fixture(scope='module')
def whole():
    """The end of the run that nothing stopped, once it has been made."""
    return {}


def end_of(distilled, whole, tmp_path):
    if not whole:
        whole.update(train(distilled(tmp_path / 'whole')))
    return whole


@pytest.mark.parametrize(('stop', 'workers'), ((1, 0), (4, 2)))
def test_stopped_and_resumed_is_the_same_to_the_last_bit(stop, workers, distilled, whole, tmp_path):
    """Student, average and teacher; also when the file of the teacher is gone."""
    wanted = end_of(distilled, whole, tmp_path)
    assert wanted['meta']['iter'] == 6 and wanted['ema_state_dict']['steps'] == 6
    file = tmp_path / 'teacher.pth'
    cfg = distilled(tmp_path / 'run', workers)
    file.write_bytes(open(cfg.model.teacher.checkpoint, 'rb').read())
    cfg.model.teacher.checkpoint = str(file)
    with pytest.raises(Stopped, match=f'iteration {stop}'):
        train(cfg, At(stop, terminate))
    file.unlink()
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    got = train(cfg, resume=True)
    assert_same_run(got, wanted)
    assert_equal(got['teacher'], wanted['teacher'])


def test_the_teacher_stays_as_its_file_has_it(distilled, whole, teacher_file, tmp_path):
    wanted = torch.load(teacher_file)['model']
    assert_equal(end_of(distilled, whole, tmp_path)['teacher'], wanted)
    assert not [name for part in ('state_dict', 'ema_state_dict') for name in whole[part] if 'teacher' in name]
