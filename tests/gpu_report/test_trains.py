"""The stage "trains" in its tiny form on a CPU: each check passes, and fails where its subject is broken."""
import time

import pytest

from helpers.paths import SAMPLES
from xcit_dense.gpu_report import tools, trains_demos, trains_exact, trains_full
from xcit_dense.gpu_report.checks import Setting
from xcit_dense.gpu_report.tools import ToolError, Tools, complaint

ONE = dict(segmentor=trains_demos.DEMOS['segmentor'])


@pytest.fixture(scope='module')
def setting(tmp_path_factory):
    """All tests share a folder, and so the generated data."""
    return Setting('cpu', True, tmp_path_factory.mktemp('out'))


def test_the_last_error_of_a_tool_is_told():
    assert complaint('start\nerror: no GPU\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n'
                     '====\n') == 'error: no GPU'
    assert complaint('Traceback\n  File "x"\nRuntimeError: a\ntorch.OutOfMemoryError: b\nbye\n') == (
        'torch.OutOfMemoryError: b')
    assert complaint('one\nKilled\n\n') == 'Killed' and complaint('') == ''


@pytest.mark.integration
def test_tools_that_fail_hang_or_end_early(setting):
    run = Tools(setting, 'short', 1).run
    with pytest.raises(ToolError, match=r'^wrong: error: --train must be 1 or more, not 0$'):
        run('wrong', 'make_demo_data', setting.out / 'x', '--train', 0)
    with pytest.raises(ToolError, match='^early: the run was over before it could be stopped'):
        run('early', 'make_demo_data', setting.out / 'y', '--train', 1, '--val', 1, '--size', 16, until=lambda: False)
    late, start = Tools(setting, 'late', (tools._MARGIN + 0.5) / 240), time.monotonic()
    with pytest.raises(ToolError, match='^slow: stopped, as the time of the check was over'):
        late.run('slow', 'make_demo_data', setting.out / 'z', '--train', 10**5)
    assert time.monotonic() - start < 20
    assert (setting.out / 'logs/short_wrong.log').read_text().startswith('error: --train')


def test_demos_below_their_bars(tmp_path):
    found = {('detector', 'float16'): (0.5, 9), ('segmentor', 'float16'): (60.1, 9)}
    assert trains_demos.judge(Setting('cuda', False, tmp_path), found).passed
    found |= {('detector', 'bfloat16'): (None, 9), ('segmentor', 'bfloat16'): (59.9, 9),
              ('segmentor', 'float16'): ToolError('x: error: y')}
    outcome = trains_demos.judge(Setting('cuda', False, tmp_path), found)
    assert outcome.passed is False and outcome.text == (
        'x: error: y; detector in bfloat16: coco/bbox_mAP_50 0.000, 0.5 wanted; '
        'segmentor in bfloat16: mIoU 59.900, 60 wanted')
    assert [row.get('result') for row in outcome.rows] == [0.5, None, 'nothing found', 59.9]


@pytest.mark.integration
def test_the_options_of_a_gpu_are_accepted(setting):
    """Up to where a GPU is missing."""
    kinds, run = tools.amp_options(Setting('cuda', True, setting.out)), Tools(setting, 'gpu', 1)
    assert list(kinds) == ['float16', 'bfloat16']
    data = trains_demos.demo_data(run)
    arguments = trains_demos.training(setting, 'segmentor', data, run.folder)
    with pytest.raises(ToolError, match='bfloat16: AssertionError: .*only available training on gpu'):
        run.run('bfloat16', 'train', *arguments, *tools.DETERMINISTIC, *kinds['bfloat16'])


@pytest.mark.integration
@pytest.mark.slow
def test_demos(setting):
    outcome = trains_demos.check_demos(setting)
    assert outcome.passed, outcome.text
    assert {row['demo'] for row in outcome.rows} == set(trains_demos.DEMOS)
    assert all(row['result'] >= 0 and row['seconds of training'] > 0 for row in outcome.rows)


@pytest.mark.integration
@pytest.mark.slow
def test_resumed_runs(setting, monkeypatch):
    monkeypatch.setattr(trains_exact, 'DEMOS', ONE)
    outcome = trains_exact.check_resume(setting)
    assert outcome.passed, outcome.text
    row, = outcome.rows
    assert 2 <= row['stopped after'] < row['iterations'] == 6 and row['tensors'] > 100 and row['different'] == 0

    def train_another(tools, task, data, name, stop, *options):
        return trains_exact._train(tools, task, data, name, '--cfg-options', 'randomness.seed=1', *options), stop

    monkeypatch.setattr(trains_exact, '_stop_and_resume', train_another)
    outcome = trains_exact.check_resume(setting)
    assert outcome.passed is False and 'values differ: state_dict.' in outcome.text


@pytest.mark.integration
@pytest.mark.slow
def test_groups(setting, monkeypatch):
    outcome = trains_exact.check_group(setting)
    assert outcome.passed, outcome.text
    assert {row['group'] for row in outcome.rows} == {'DDP', 'FSDP'}
    assert all(row['iterations'] == 6 and row['backend'] == 'gloo' for row in outcome.rows)
    monkeypatch.setattr(trains_exact, 'GROUPS', dict(
        other=(('--cfg-options', 'randomness.seed=1'), 'Distributed training: True', (1e-5, 1e-5)),
        none=((), 'this process holds', (1, 1))))
    outcome = trains_exact.check_group(setting)
    assert outcome.passed is False and 'other in float32: a loss differs by ' in outcome.text
    assert "none_float32: the log does not say 'this process holds', so it trained without none" in outcome.text


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize('family, patch_size, on_samples', (('maskrcnn', 16, True), ('upernet', 16, False)))
def test_full_configs(family, patch_size, on_samples, setting, tmp_path):
    if on_samples and not SAMPLES.is_dir():
        pytest.skip('no samples')
    if on_samples:
        (tmp_path / 'coco').symlink_to(SAMPLES / 'coco_sample')
        (tmp_path / 'ade20k').symlink_to(SAMPLES / 'ade20k_sample/ADEChallengeData2016')
    setting = Setting('cpu', True, setting.out, tmp_path if on_samples else None)
    outcome = trains_full.check_config(setting, family, patch_size)
    assert outcome.passed, outcome.text
    row, = outcome.rows
    assert row['iterations'] == row['batch'] == 2 and row['data'] == ('samples' if on_samples else 'generated')
    assert 0 <= outcome.facts['waiting_share'] < 1 and 0 < outcome.facts['seconds'] < 100


@pytest.mark.integration
def test_a_full_config_without_data(setting, tmp_path):
    outcome = trains_full.check_config(Setting('cpu', True, setting.out, tmp_path), 'semfpn', 16)
    assert outcome.passed is False and 'ade20k' in outcome.text and outcome.text.startswith('measure: error: ')
