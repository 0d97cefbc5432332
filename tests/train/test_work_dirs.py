"""Who owns a work dir: no run deletes or replaces files of another run, whatever their names, or runs beside it."""
import errno
import fcntl
import logging
import multiprocessing
import os
import re
import shutil
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import At, Metrics, die, make_config, short_config, train
from xcit_dense.errors import CheckpointError, ConfigError
from xcit_dense.train import DenseCheckpointHook, build_runner, work_dirs
from xcit_dense.train.work_dirs import check_work_dir, claim_work_dir, keep_others, lock_work_dir
from xcit_dense.weights import fetch, newest_checkpoint, read_checkpoint
from xcit_dense.weights.files import Notes, checkpoints_in, read_notes, write_notes


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob('*.p*t*')}


@pytest.fixture(scope='module')
def run(demo_data, tmp_path_factory):
    """The work dir of a run of three iterations, each saved, whose last two checkpoints stayed."""
    folder = tmp_path_factory.mktemp('run')
    train(short_config(demo_data, folder, 3, max_keep_ckpts=2))
    assert read_checkpoint(folder / 'iter_3.pth')['message_hub']['runtime_info']['run_id'] == read_notes(folder).run
    return folder


@pytest.fixture
def two(run, tmp_path):
    """The work dirs of two runs, whose files have the same names; of the second the contents tell it."""
    other = shutil.copytree(run, tmp_path / 'other')
    write_notes(other, Notes('another', read_notes(other).checkpoints))
    for path in other.glob('*.pth'):
        tell(path, run_id='another')
    return shutil.copytree(run, tmp_path / 'run'), other


def tell(path, to=None, **infos):
    """Change what a checkpoint says of its run, here or in a copy; None is nothing."""
    state = torch.load(path, weights_only=False)
    hub = state['message_hub']
    hub['runtime_info'] = {key: value for key, value in (hub['runtime_info'] | infos).items() if value is not None}
    hub['resumed_keys'] |= dict.fromkeys(infos, True)
    torch.save(state, to or path)


@pytest.mark.parametrize('checkpoints, best, stays', (
    ((), ('a.pth', ), True), (('a.pth', ), (), True), ((), (), False)))
def test_a_run_replaces_its_own_files_in_their_place(checkpoints, best, stays, tmp_path):
    (tmp_path / 'a.pth').touch()
    keep_others(tmp_path, 'a.pth', Notes('a run', checkpoints, best))
    assert (tmp_path / 'a.pth').exists() == stays


@pytest.mark.parametrize('start', ('folder', 'new'))
def test_a_run_in_the_folder_of_another_moves_its_files(start, two, demo_data):
    first, other = two
    before = contents(other)
    cfg = short_config(demo_data, other, 4 if start != 'new' else 2, max_keep_ckpts=1)
    cfg.load_from = None if start == 'new' else str(first)
    train(cfg, resume=start != 'new')
    aside, = other.glob('before_*')
    assert contents(aside) == before and read_notes(aside).run == 'another'
    assert f'moved 2 checkpoints of an earlier run into {aside}\n' in ''.join(
        log.read_text() for log in other.glob('*/*.log'))
    assert list(contents(other)) == ['iter_2.pth' if start == 'new' else 'iter_4.pth'] and len(contents(first)) == 2


def test_the_tool_refuses_the_folder_of_another_run(two, demo_data, call_tool):
    first, other = two
    before = contents(other)
    for whose, *options in (('a run other than the one to resume', '--resume', first), ('an earlier run', ), (
            'a run other', '--cfg-options', 'resume=True', f'load_from={first}/iter_3.pth')):
        code, said = call_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', other,
                               '--no-pretrained', *options)
        assert code == 1 and re.search(f'{other} has checkpoints of {whose}.*iter_2.pth.*--overwrite', said)
    assert contents(other) == before
    check_work_dir(Config(dict(work_dir=str(first), resume=True)))  # as good as the option
    check_work_dir(Config(dict(work_dir=str(other))), overwrite=True)  # which the training then moves
    with pytest.raises(ConfigError, match='earlier run'):
        check_work_dir(Config(dict(work_dir=str(first), resume=False)))


def resume_by_hand(cfg, checkpoint):
    runner = build_runner(cfg)
    runner.resume(str(checkpoint))
    runner.train()


@pytest.mark.parametrize('by_hand, named', ((True, False), (False, True)))
def test_a_checkpoint_among_the_files_of_another_run_is_refused(by_hand, named, two, demo_data):
    """Copied there by hand, so that its place does not tell; nor does one of mmengine's name its run."""
    first, other = two
    copied = other / 'iter_9.pth'
    shutil.copy(first / 'iter_3.pth', copied)
    if not named:
        tell(copied, run_id=None)
    cfg, before = short_config(demo_data, other, 4, max_keep_ckpts=1), contents(other)
    with pytest.raises(ConfigError, match=f'iter_9.pth {"is" if named else "may be"} from a .* iter_2.pth'):
        if by_hand:
            resume_by_hand(cfg, copied)
        else:
            cfg.load_from = str(copied)
            train(cfg, resume=True)
    assert contents(other) == before


@pytest.mark.parametrize('source, named', ((None, True), ('iter_3.pth', False), ('', False)))
def test_a_run_goes_on_in_its_folder(source, named, run, demo_data, tmp_path):
    """Which was moved; by the option, or by hand as a file or by its folder; a noted checkpoint needs no name."""
    folder, before = shutil.copytree(run, tmp_path / 'run'), contents(run)
    if not named:
        tell(folder / 'iter_3.pth', run_id=None)
    cfg = short_config(demo_data, folder, 4, max_keep_ckpts=2)
    if source is None:
        train(cfg, resume=True)
    else:
        resume_by_hand(cfg, folder / source)
    assert sorted(contents(folder)) == ['iter_3.pth', 'iter_4.pth'] and read_notes(folder).run == read_notes(run).run
    assert contents(run) == before


@pytest.mark.parametrize('key, name', (('load_from', 'iter_3.pth'), ('init_from', ''), ('init_from', 'iter_33.pth')))
def test_weights_of_the_folder_that_is_to_be_taken_are_refused(key, name, two, demo_data):
    """Nor does a start that is not there move anything."""
    first, _ = two
    config = first / TINY_SEG_CONFIG.name
    cfg, before = short_config(demo_data, first), (contents(first), config.read_bytes())
    cfg[key] = str(first / name)
    error, said = ((CheckpointError, 'iter_33.pth') if '33' in name else
                   (ConfigError, f'{first / (name or "iter_3.pth")}, which is in its own work dir'))
    with pytest.raises(error, match=said):
        build_runner(cfg).train()
    assert (contents(first), config.read_bytes()) == before


@pytest.mark.parametrize('resume, load_from', (
    (True, 'iter_3.pth'), ('iter_3.pth', 'weights.pth'), ('auto', 'weights.pth')))
def test_the_config_of_a_resumed_run_is_one_for_new_runs(resume, load_from, run, demo_data, tmp_path):
    """It continues nothing, and starts from the same weights, which the resumed run does not fetch."""
    folder = shutil.copytree(run, tmp_path / 'run')
    cfg = short_config(demo_data, folder, 4)
    cfg.load_from = str(folder / load_from)
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='absent.pth')
    train(cfg, resume=resume if resume in (True, 'auto') else str(folder / resume))
    found = Config.fromfile(folder / TINY_SEG_CONFIG.name, import_custom_modules=False)
    kept = None if resume is True else str(folder / load_from)
    assert (found.resume, found.load_from, found.train_cfg.max_iters) == (False, kept, 4)
    assert found.model.backbone.init_cfg.checkpoint == 'absent.pth'


def test_a_copied_checkpoint_is_gone_on_with_and_stays(run, demo_data, tmp_path):
    """Twice, for the first time without saving anything; the copy is not the run's to delete."""
    shutil.copy(run / 'iter_2.pth', tmp_path)
    cfg = short_config(demo_data, tmp_path, 4, max_keep_ckpts=1)
    with pytest.raises(RuntimeError, match='killed'):
        train(cfg, At(3, die, where='before_train_iter'), resume=True)
    train(cfg, resume=True)
    assert sorted(contents(tmp_path)) == ['iter_2.pth', 'iter_4.pth']


def test_the_list_in_a_checkpoint_of_mmengine_deletes_nothing(run, demo_data, tmp_path):
    """Its hook would look for these numbers in the work dir of today."""
    tell(run / 'iter_3.pth', tmp_path / 'iter_3.pth', run_id=None, keep_ckpt_ids=[1, 2])
    for number in (1, 2):
        (tmp_path / f'iter_{number}.pth').write_text('of a user')
    train(short_config(demo_data, tmp_path, 4, max_keep_ckpts=1), resume=True)
    assert sorted(contents(tmp_path)) == ['iter_1.pth', 'iter_2.pth', 'iter_3.pth', 'iter_4.pth']


def test_the_best_of_another_run_stays(demo_data, tmp_path):
    """By two metrics. Also where files of its name, and of that of the next one, lie here."""
    keys, first, second = ('mIoU', 'aAcc'), tmp_path / 'first', tmp_path / 'second'
    changes = {'default_hooks.checkpoint': dict(save_best=[*keys], rule='greater'), 'train_cfg.val_interval': 1}
    train(make_config(TINY_SEG_CONFIG, demo_data, first, **changes), Metrics(1., 3., 2., 2.))
    cfg = make_config(TINY_SEG_CONFIG, demo_data, second, **changes, **{'train_cfg.max_iters': 6})
    cfg.load_from = str(first / 'iter_4.pth')

    def place(_):
        for key, number in product(keys, (2, 6)):
            (second / f'best_{key}_iter_{number}.pth').write_text('of a user')

    train(cfg, Metrics(2., 2., 4.), At(5, place, where='before_train_iter'), resume=True)
    assert [len(list(folder.glob('best_*'))) for folder in (first, second)] == [2, 4]
    moved = {path.name: path.read_text() for path in second.glob('before_*/*')}
    assert moved == dict.fromkeys(read_notes(second).best, 'of a user') and len(moved) == 2
    assert {(second / name).stat().st_size > 1000 for name in moved} == {True}


@pytest.mark.parametrize('own', (True, False))
def test_paths_in_a_checkpoint_are_those_of_the_folder_of_today(own, tmp_path):
    """Of a folder that was moved; those of another run stay what they are, and are nobody's last checkpoint."""
    hub, hook = MessageHub.get_instance('paths'), DenseCheckpointHook(save_best='mIoU', rule='greater')
    hub.update_info('best_ckpt', '/before/best_mIoU_iter_2.pth')
    hub.update_info('last_ckpt', '/before/iter_4.pth')
    notes = Notes('a', ['iter_4.pth'], ['best_mIoU_iter_2.pth']) if own else Notes('b')
    hook.before_train(SimpleNamespace(notes=notes, work_dir=str(tmp_path), message_hub=hub,
                                      logger=logging.getLogger('paths')))
    assert hook.best_ckpt_path == str((tmp_path if own else Path('/before')) / 'best_mIoU_iter_2.pth')
    assert hub.runtime_info.get('last_ckpt') == (str(tmp_path / 'iter_4.pth') if own else None)


def test_checkpoints_of_any_name_are_found_kept_and_replaced(demo_data, tmp_path):
    """Also one that looks like that of a best checkpoint."""
    cfg = short_config(demo_data, tmp_path, 2, max_keep_ckpts=2, filename_tmpl='best_{}.ckpt')
    train(cfg)
    names = [f'best_{number}.ckpt' for number in (1, 2, 3)]
    assert fetch(str(tmp_path)) == tmp_path / names[1]
    assert newest_checkpoint(tmp_path, to_resume=True) == tmp_path / names[1]
    cfg.train_cfg.max_iters = 3
    assert train(cfg, resume=True)['meta']['iter'] == 3
    assert [tmp_path / name for name in names[1:]] == checkpoints_in(tmp_path)
    (tmp_path / names[2]).write_bytes(b'PK\3\4 cut off')
    assert newest_checkpoint(tmp_path, to_resume=True) == tmp_path / names[1]
    train(cfg)  # a new run
    aside, = tmp_path.glob('before_*')
    assert [aside / name for name in names[1:]] == checkpoints_in(aside)


@pytest.mark.parametrize('template, placed', (('ep{}.pt', 'within'), ('{}.pth', 'resumed')))
def test_a_file_that_the_run_did_not_write_is_moved_and_not_replaced(template, placed, demo_data, tmp_path, capfd):
    """New since the run began or since it stopped; neither is it deleted later as one of the run's."""
    theirs = tmp_path / template.format(2)
    cfg, hooks = short_config(demo_data, tmp_path, 3, max_keep_ckpts=1, filename_tmpl=template), []
    if placed == 'resumed':
        train(short_config(demo_data, tmp_path, 1, filename_tmpl=template))
        theirs.write_text('of a user')
    else:
        hooks = [At(2, lambda _: theirs.write_text('of a user'), where='before_train_iter')]
    train(cfg, *hooks, resume=placed == 'resumed')
    aside, = tmp_path.glob('before_*')
    assert (aside / theirs.name).read_text() == 'of a user' and not theirs.exists()
    assert checkpoints_in(tmp_path) == [tmp_path / template.format(3)]
    assert re.search(f'{theirs.name} was not written by this run', ''.join(capfd.readouterr()))


def test_notes_that_cannot_be_of_a_run_are_none(tmp_path):
    for text in ('', '[]', '{"run": 1, "more": 2}', '{"run": "a", "checkpoints": ["../a.pth"]}',
                 '{"run": "a", "best": ["/a.pth"]}', '{"run": "a", "best": [1]}'):
        (tmp_path / '.checkpoints').write_text(text)
        assert read_notes(tmp_path) is None and checkpoints_in(tmp_path) == [], text
    write_notes(tmp_path, Notes('a', ['iter_1.pth']))  # those of files that are gone bind nobody
    assert claim_work_dir(tmp_path).checkpoints == []
    (tmp_path / 'iter_2.pth').touch()
    assert claim_work_dir(tmp_path, tmp_path / 'iter_2.pth', run='b') == Notes('b')
    for name in ('a', 'b'):  # two moves within a second
        (tmp_path / 'iter_1.pth').write_text(name)
        claim_work_dir(tmp_path)
    assert sorted(path.read_text() for path in tmp_path.glob('before_*/iter_1.pth')) == ['a', 'b']


def test_a_refused_start_leaves_no_folder_and_no_log(run, demo_data, tmp_path):
    folder = tmp_path / 'runs/new'
    for said, resume in (('no.pth', dict(load_from=str(tmp_path / 'no.pth'))), ('nothing to resume', {})):
        with pytest.raises(CheckpointError, match=said):
            check_work_dir(Config(dict(work_dir=str(folder), resume=True, **resume)))
        assert not folder.parent.exists()
    cfg = short_config(demo_data, folder)
    cfg.load_from, cfg.optim_wrapper.optimizer.lr = str(run / 'iter_3.pth'), 0.5
    with pytest.raises(ConfigError, match='optimizer.lr'):
        train(cfg, resume=True)
    assert not folder.parent.exists()


def test_a_locked_folder(tmp_path):
    folder = tmp_path / 'run'
    folder.mkdir()
    for name in ('iter_1.pth', 'iter_2.pth.0a1b2c3d.part', 'last_checkpoint.0a1b2c3d.part', 'parts', 'film.mp4.part'):
        (folder / name).touch()
    lock = lock_work_dir(folder)
    assert sorted(p.name for p in folder.iterdir()) == ['.running', 'film.mp4.part', 'iter_1.pth', 'parts']
    assert (folder / '.running').read_text() == str(os.getpid())
    for refuse in (lock_work_dir, lock_work_dir, lambda path: check_work_dir(Config(dict(work_dir=str(path))), True)):
        with pytest.raises(ConfigError, match=rf'another training \(process {os.getpid()}.*\) runs in .*--work-dir'):
            refuse(folder)
    lock.close()
    lock_work_dir(folder).close()
    assert (folder / '.running').read_text() == str(os.getpid())  # not that of the one before too
    lock_work_dir(tmp_path / 'new/run').close()
    (tmp_path / 'file').touch()
    for refuse in (lock_work_dir, lambda path: check_work_dir(Config(dict(work_dir=str(path))))):
        with pytest.raises(CheckpointError, match='cannot write .*file/run: Not a directory'):
            refuse(tmp_path / 'file/run')


def test_what_a_killed_measurement_left_goes_at_the_next_start(tmp_path):
    for name in ('.measured_5bq8ev6y/.running', '.measured_5bq8ev6y/measured.pth', '.measured_my_notes/a.txt'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / '.running').touch()
    with open(tmp_path / '.running') as other:  # of a process that measures
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match='another training'):
            check_work_dir(Config(dict(work_dir=str(tmp_path))))
        assert (tmp_path / '.measured_5bq8ev6y').exists()
    check_work_dir(Config(dict(work_dir=str(tmp_path))))
    assert {path.name for path in tmp_path.iterdir()} == {'.running', '.measured_my_notes'}


def test_a_worker_that_outlives_its_run_locks_nobody_out(tmp_path):
    context = multiprocessing.get_context('fork')
    runs, ends = context.Event(), context.Event()
    with lock_work_dir(tmp_path):
        worker = context.Process(target=lambda: (runs.set(), ends.wait(60)))
        worker.start()
        assert runs.wait(20)
    lock_work_dir(tmp_path).close()
    ends.set()
    worker.join()


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(fcntl, 'flock', lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, 'no locks')))
    monkeypatch.setattr(work_dirs, 'print_log', lambda text, level, **_: said.append((text, level)))
    with lock_work_dir(tmp_path):
        (text, level), = said
    assert str(tmp_path / '.running') in text and level == logging.WARNING
