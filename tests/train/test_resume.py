"""A run that stopped and went on ends where one without the stop ends, bit for bit; nothing is lost on the way."""
import copy
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import Hook

from helpers import runs
from helpers.models import assert_equal
from helpers.paths import ROOT, TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import NO_VALIDATION, At, Metrics, assert_same_run, die, make_config, stop_after, terminate, train
from helpers.tools import as_in_a_process_of_its_own, environment
from xcit_dense.config.options import add_hook, set_best, set_val_loss
from xcit_dense.errors import CheckpointError, ConfigError, DataError, Stopped
from xcit_dense.report.hooks import close_loggers
from xcit_dense.train import resuming
from xcit_dense.train.resuming import changed_settings
from xcit_dense.train.saving import VALIDATIONS
from xcit_dense.weights import newest_checkpoint, read_checkpoint
from xcit_dense.weights.convert import from_plain


@pytest.fixture
def case(demo_data, tmp_path, tmp_path_factory):
    """A function that returns the config of one of `runs.CASES` and the end of a run of it that nothing stopped."""
    # all of them here: no single test pays for them
    ends = {name: runs.whole_run(name, demo_data, tmp_path_factory) for name in runs.CASES}
    return lambda name, workers=0: (make_config(TINY_SEG_CONFIG, demo_data, tmp_path, workers, **runs.CASES[name]),
                                    ends[name])


@pytest.mark.parametrize(('name', 'workers', 'stop'), (
    ('iterations_loaded', 0, 1), ('iterations_loaded', 2, 3),
    ('iterations_skipping', 0, 2),  # iterations and steps of the optimizer part
    ('epochs', 0, 4), pytest.param('epochs', 2, 3, marks=pytest.mark.slow)))  # with a validation due
def test_stopped_and_resumed_is_the_same_to_the_last_bit(name, workers, stop, case):
    cfg, wanted = case(name, workers)
    validated, skips = [], name == 'iterations_skipping'

    class Note(Hook):
        def before_val(self, runner):
            validated.append(runner.iter)

        def after_train_iter(self, runner, batch_idx, *_, **__):
            assert batch_idx == (runner.iter % 3 if name == 'epochs' else runner.iter)

    saved = stop_after(stop, cfg, Note())['training']
    steps = stop - skips
    assert saved['loops'][0]['skipped'] == skips and saved['loops'][0]['steps'] == steps
    assert wanted['training']['loops'][0]['skipped'] == 2 * skips
    waiting = saved['gradients']  # between two iterations whose gradients are added
    assert bool(waiting) == (steps % 2 == 1)
    assert all(value[0].isfinite().all() for value in waiting.values())
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    runs.disturb()
    assert_same_run(train(cfg, Note(), resume=True), wanted)
    assert validated == ([3, 5] if name == 'epochs' else [2, 4, 6][:3 if skips else 2])


def test_stopped_in_the_last_validation_it_validates_again(case):
    cfg, wanted = case('epochs')
    with pytest.raises(Stopped, match='after iteration 5'):
        train(cfg, At(6, terminate, where='before_val_iter'))
    validated = []
    assert_same_run(train(cfg, At(6, validated.append, where='before_val'), resume=True), wanted)
    assert len(validated) == 1


@pytest.fixture(scope='module')
def classifier(class_folders, tmp_path_factory):
    """The end of a classifier's run that nothing stopped."""
    pytest.importorskip('mmpretrain')
    return train(make_config(TINY_CLS_CONFIG, class_folders, tmp_path_factory.mktemp('whole')))


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize(('stop', 'workers'), ((2, 2), (3, 0)))
def test_classifiers_too(stop, workers, classifier, class_folders, tmp_path):
    """RandAugment, erasing, mixing, repeated augmentation and the average, with workers too, and nano's class token."""
    assert classifier['meta']['iter'] == 6 and classifier['ema_state_dict']['steps'] == 6
    cfg = make_config(TINY_CLS_CONFIG, class_folders, tmp_path, workers)
    stop_after(stop, cfg)
    cfg.randomness = dict(seed=None)  # it is the checkpoint's
    assert_same_run(train(cfg, resume=True), classifier)


def test_stopped_during_a_validation_and_after_it(case):
    cfg, wanted = case('iterations_loaded')
    calls = []

    class StopInValidation(Hook):
        def after_val_iter(self, runner, *_, **__):
            calls.append(runner.iter)
            if len(calls) == 2:
                terminate(runner)

        def after_val_epoch(self, runner, *_, **__):
            if len(calls) == 5:
                terminate(runner)

    for resume, validated in ((False, [2, 2]), (True, [2, 2, 2, 2, 2])):  # what was cut off, again
        with pytest.raises(Stopped, match='iteration 2'):
            train(cfg, StopInValidation(), resume=resume)
        assert calls == validated
    assert_same_run(train(cfg, StopInValidation(), resume=True), wanted)
    assert calls[5:] == [4, 4, 4]  # a whole one is not repeated


def test_a_validation_changes_nothing_of_a_training(case):
    cfg, wanted = case('iterations_loaded')
    cfg.merge_from_dict(NO_VALIDATION)
    got = train(cfg)
    assert_equal(got['state_dict'], wanted['state_dict'])
    assert_equal(got['training']['loops'][0]['random'], wanted['training']['loops'][0]['random'])


def test_a_checkpoint_of_mmengine_goes_on_with_the_next_pass(case, tmp_path):
    """It has no position in the data, but its epoch."""
    cfg, end = case('epochs')
    of_mmengine = from_plain(copy.deepcopy({key: value for key, value in end.items() if key != 'training'}))
    torch.save(of_mmengine, tmp_path / 'epoch_2.pth')
    cfg.train_cfg.max_epochs, passes = 3, []
    with pytest.raises(RuntimeError, match='killed by the test'):
        train(cfg, At(6, lambda runner: passes.append(runner.train_loop.dataloader.passes), where='before_train'),
              At(6, die, where='before_train'), resume=True)
    assert passes == [2]


@pytest.mark.parametrize('numbers', ([signal.SIGINT], [signal.SIGTERM] * 2, [signal.SIGTERM, signal.SIGINT]))
def test_a_signal_saves_where_the_run_stands(numbers, demo_data, tmp_path, capfd):
    """torch's launcher sends SIGTERM to processes that had one already, while they save too."""
    hooks = [At(1, partial(terminate, number=number)) for number in numbers]
    if len(numbers) == 2:
        hooks.append(At(2, terminate, where='before_save_checkpoint'))  # the first iteration has been counted
    with pytest.raises(Stopped, match=f'{numbers[0].name} after iteration 1. Saved .*iter_1.pth'):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path), *hooks)
    assert newest_checkpoint(tmp_path).name == 'iter_1.pth'
    # what the second one does is said to whom it concerns
    assert ('Ctrl-C again' in capfd.readouterr().err) == (signal.SIGINT in numbers)


def test_the_second_ctrl_c_stops_at_once(demo_data, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path), *[At(1, partial(terminate, number=signal.SIGINT))] * 2)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_run_in_a_thread_trains(demo_data, tmp_path):
    with ThreadPoolExecutor() as pool:
        assert pool.submit(train, make_config(TINY_SEG_CONFIG, demo_data, tmp_path)).result()['meta']['iter'] == 4


def test_resume_with_other_classes_or_options_is_said(demo_data, tmp_path, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **NO_VALIDATION)
    stop_after(3, cfg)
    other = copy.deepcopy(cfg)
    classes = other.train_dataloader.dataset.metainfo['classes']
    other.train_dataloader.dataset.metainfo['classes'] = (classes[1], classes[0], *classes[2:])
    published = (tmp_path / TINY_SEG_CONFIG.name).read_text()
    with pytest.raises(DataError, match='has the classes .* this run.*--init-from .*iter_3.pth and another --work-dir'):
        train(other, resume=True)
    assert (tmp_path / TINY_SEG_CONFIG.name).read_text() == published  # a refused run changes nothing
    capfd.readouterr()
    train(cfg, resume=True)
    assert 'settings that differ' not in ''.join(capfd.readouterr())
    cfg.train_cfg.max_iters = 5
    train(cfg, resume=True)
    assert 'settings that differ from before:\n  train_cfg.max_iters: 4 -> 5\n' in ''.join(capfd.readouterr())
    # the checkpoint has its own
    cfg.optim_wrapper.optimizer.lr, cfg.param_scheduler[1].end = 0.5, 9
    with pytest.raises(ConfigError, match=r'have no effect:\n  optim_wrapper.optimizer.lr: 0.002 -> 0.5\n'
                                          r'  param_scheduler.1.end: \d+ -> 9\n.*--init-from .*iter_5.pth'):
        train(cfg, resume=True)


@pytest.mark.parametrize('option, hook', (('--compile', dict(type='CompileHook')), (
    '--val-loss', dict(type='ValLossHook')), ('--log', dict(type='LoggersHook', loggers=['tensorboard']))))
def test_an_option_that_was_left_out_is_named(option, hook):
    """And one that was added is not asked for again."""
    own, other = dict(type='Own', x=1), dict(type='Other', y=[2])
    before, now = Config(dict(custom_hooks=[own, hook, other], seed=3)), Config(dict(custom_hooks=[own, other], seed=3))
    name = f'  custom_hooks.{hook["type"]}'
    shown = dict(sorted(hook.items()))
    assert changed_settings(now, before.pretty_text, None) == (
        f'{name}: {shown} -> not set\n if the previous run had {option}, give it again')
    assert changed_settings(before, now.pretty_text, None) == f'{name}: not set -> {shown}'


def test_options_come_and_go_and_the_training_is_the_same(case, capfd):
    """Losses on validation data, and a logger."""
    pytest.importorskip('tensorboard')
    plain, wanted = case('iterations')
    with_all, runners = copy.deepcopy(plain), []
    set_val_loss(with_all)
    add_hook(with_all, 'LoggersHook', loggers=['tensorboard'])
    with as_in_a_process_of_its_own():
        stop_after(3, with_all, At(3, runners.append))
    close_loggers(*runners)
    with as_in_a_process_of_its_own():
        assert_same_run(train(plain, resume=True), wanted)
    said = ''.join(capfd.readouterr())
    assert 'failed' not in said and 'custom_hooks.ValLossHook' in said
    assert ' if the previous run had --log, --val-loss, give it again' in said


@pytest.mark.parametrize('count, processes', ((1, 1), (2, 1), (1, 3)))
def test_resuming_with_another_number_of_processes_is_said(count, processes, trained_segmentor, demo_data, tmp_path,
                                                           capfd, monkeypatch):
    """As is that the run is over."""
    state, path = read_checkpoint(trained_segmentor[0] / 'iter_4.pth'), tmp_path / 'iter_4.pth'
    state['training']['loops'] *= count
    torch.save(state, path)
    monkeypatch.setattr('xcit_dense.train.runner.get_world_size', lambda: processes)
    for length in (5, 4):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **NO_VALIDATION, **{'train_cfg.max_iters': length}),
              resume=str(path))
        said = ''.join(capfd.readouterr())
        told = bool(re.search(rf'{count} process(es)?, this run has {processes}', said))
        assert told == ('not exactly' in said) == (count != processes)
        assert bool(re.search('iter_4.pth .* 4 iterations.* nothing', said)) == (length == 4)


@pytest.mark.parametrize('rank, processes, grad, loop', ((0, 1, 2., 'a'), (1, 2, 3., 'b'), (2, 3, 2., 'b')))
def test_waiting_gradients_of_another_number_of_processes_are_averaged(rank, processes, grad, loop, monkeypatch):
    """Two processes saved; each of as many gets its own, and further ones the random numbers of the last."""
    monkeypatch.setattr(resuming, 'get_world_size', lambda: processes)
    monkeypatch.setattr(resuming, 'get_rank', lambda: rank)
    layer, found = torch.nn.Linear(1, 1), []
    runner = SimpleNamespace(model=layer, hooks=[], train_loop=SimpleNamespace(load_state_dict=found.append),
                             train_dataloader=SimpleNamespace(dataset=[]))
    weight = [torch.full_like(layer.weight, value) for value in (1, 3)]
    resuming.restore_training(runner, dict(loops=['a', 'b'], gradients=dict(weight=weight), early_stopping=[],
                                           samples=0), 'a.pth')
    assert layer.weight.grad == grad and layer.bias.grad is None and found == [loop]


def test_resume_never_starts_from_scratch(trained_segmentor, demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(CheckpointError, match='nothing to resume'):
        train(cfg, resume=True)
    (tmp_path / 'iter_2.pth').write_bytes(b'PK\3\4 cut off')
    with pytest.raises(CheckpointError, match='no intact checkpoint'):
        train(cfg, resume=True)
    best = read_checkpoint(trained_segmentor[0] / 'iter_4.pth')
    del best['optimizer']
    torch.save(best, tmp_path / 'best_mIoU_iter_4.pth')
    cfg.load_from = str(tmp_path / 'best_mIoU_iter_4.pth')
    with pytest.raises(CheckpointError, match='no state .*resume'):
        train(cfg, resume=True)


def test_patience_and_the_best_score_are_those_of_before_the_stop(demo_data, tmp_path):
    """The best is the second; two validations later nothing was better, and that ends the run. It neither takes a worse
    checkpoint for the best nor forgets where the best lies."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        'train_cfg.max_iters': 6, 'train_cfg.val_interval': 1, 'custom_hooks': [dict(type='EMAHook')]})
    set_best(cfg, patience=2)
    stop_after(4, cfg, metrics := Metrics(1., 3., 2., 2., 1., 0.))
    second = read_checkpoint(tmp_path / 'iter_2.pth')  # it was saved again with the best, after the validation
    assert second['training']['early_stopping'] == [dict(best_score=3., wait_count=0)]
    assert second['message_hub']['runtime_info'][VALIDATIONS] == [[1, 1.], [2, 3.]]
    train(cfg, metrics, At(5, die), resume=True)
    assert metrics.values == [1., 0.]
    assert [path.name for path in tmp_path.glob('best_*.pth')] == ['best_mIoU_iter_2.pth']


@pytest.mark.slow
def test_killed_at_random_points_and_resumed(demo_data, tmp_path, tmp_path_factory):
    """kill -9 from outside, again and again, until the run ends."""
    # the tool would add the second by itself
    changes = {'train_cfg.max_epochs': 4, 'default_hooks.checkpoint.save_best': 'coco/segm_mAP'}
    wanted = train(make_config(TINY_CONFIG, demo_data, tmp_path_factory.mktemp('whole'), **changes))
    options = [f'{key}={value}' for key, value in changes.items()] + [
        'randomness.seed=3', 'train_dataloader.num_workers=2', 'train_dataloader.persistent_workers=True',
        *(f'model.backbone.{key}={value}' for key, value in runs.DROPPING.items())]
    command = [sys.executable, ROOT / 'tools/train.py', TINY_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path,
               '--no-pretrained', '--no-fit', '--cfg-options', *options]
    rng, kills, resumed = np.random.default_rng(0), 0, 0
    for _ in range(12):
        resume = ['--resume'] if list(tmp_path.glob('*.pth')) else []
        resumed += bool(resume)
        process = subprocess.Popen([*command[:3], *resume, *command[3:]], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True, env=environment())
        for line in process.stdout:
            # the first before there is a checkpoint
            if re.search(r'\(train\)', line) and kills < 4 and (not kills or list(tmp_path.glob('*.pth'))):
                time.sleep(rng.uniform(0, 0.3))
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
        process.communicate(timeout=100)  # workers that stay would keep the pipe open
        if process.wait() == 0:
            break
    assert kills > 1 and resumed and process.returncode == 0
    assert_same_run(read_checkpoint(newest_checkpoint(tmp_path)), wanted)


def test_settings_that_were_left_out_are_named_by_their_options():
    def changed(key, before=1, after=2):
        old, new = Config(), Config()
        old.merge_from_dict({key: before})
        new.merge_from_dict({key: after})
        return changed_settings(new, old.pretty_text, 'x.pth')

    for key, before, after, option in (
            ('train_dataloader.dataset.pipeline', [dict(type='RandomFlip', prob=0.5)], [], '--augment'),
            ('model.data_preprocessor.size', (64, 64), (32, 32), '--image-size')):
        assert changed(key, before, after).endswith(f'\n if the previous run had {option}, give it again')
    with pytest.raises(ConfigError, match=r'optimizer.lr: 0.5 -> 0.1\nRestore .*\(if the previous run had --lr, give'):
        changed('optim_wrapper.optimizer.lr', 0.5, 0.1)
    for key in ('optim_wrapper.paramwise_cfg.a', 'param_scheduler.a', 'auto_scale_lr.a'):
        with pytest.raises(ConfigError, match=f'  {key}: 1 -> 2\nRestore'):
            changed(key)
    for key in ('resume', 'load_from', 'init_from', 'work_dir', 'launcher', 'custom_imports', 'config_findings',
                'fitted', 'fitted_to', 'timed', 'val_share', 'a.init_cfg.b', 'val_dataloader.dataset.metainfo.palette'):
        assert changed(key) == '', key
    for key in ('train_dataloader.dataset.data_root', 'val_dataloader.num_workers'):  # which change no result
        assert changed(key) == f'  {key}: 1 -> 2'
