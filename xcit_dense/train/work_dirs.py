"""Ownership of work dirs: each run has its own folder; a resumed run continues in its folder."""
import fcntl
import logging
import os
import re
import shutil
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from mmengine.logging import print_log

from .._utils.files import OwnFiles, atomic_write, lies_within
from .._utils.text import counted, listed
from ..config.loading import find_config, list_models
from ..data.folders import IMAGE_SUFFIXES
from ..errors import CheckpointError, ConfigError, OutputError, XCiTDenseError
from ..weights.files import NOTES, POINTER, Notes, checkpoints_in, is_checkpoint_of, place_of, read_notes
from .resuming import find_resumed, source_of


def check_work_dir(cfg, overwrite: bool = False):
    """Raise an error, before anything is written, if a work dir is not free or there is nothing to resume.

    With ``overwrite`` it may have checkpoints of another run, which `claim_work_dir` then moves. What is resumed is in
    ``cfg.resume`` and ``cfg.load_from``, see `xcit_dense.train.resuming.source_of`. `CheckpointError` if the folder
    cannot be written to, or there is nothing to resume; `ConfigError` if another training runs there, or did so before.
    """
    folder, resumes = Path(cfg.work_dir), None
    if cfg.get('resume'):
        source = source_of(cfg.resume, cfg.get('load_from'))
        resumes = source or cfg.work_dir
        if '://' not in str(source) and not Path(resumes).is_file() and not checkpoints_in(resumes):
            find_resumed(source, cfg.work_dir)  # it says what is missing
    if os.path.lexists(folder):
        lock_work_dir(folder).close()  # the runner locks it again
    else:
        with named_errors(folder):  # leave nothing until the run begins
            place = next(path for path in folder.absolute().parents if path.exists())
            TemporaryDirectory(dir=place).cleanup()
    found = checkpoints_in(folder)
    if found and not overwrite and not (resumes and is_checkpoint_of(folder, resumes)):
        other = 'a run other than the one to resume' if resumes else 'an earlier run'
        raise ConfigError(f'{folder.absolute()} has checkpoints of {other}, such as {found[0].name}. Continue that run '
                          '(--resume without FILE), give another --work-dir, or give --overwrite, which moves these '
                          'checkpoints into a folder in it')


def lock_work_dir(work_dir):
    """Keep other trainings out of a folder until the returned file is closed, or this process ends.

    A file system without locks (``flock``), as some in a network, cannot do that; a warning says so. What killed
    trainings left half-written or measured is removed. `CheckpointError` if the folder cannot be written to,
    `ConfigError` if a training runs there.
    """
    folder = Path(work_dir)
    with named_errors(folder), ExitStack() as stack:
        folder.mkdir(parents=True, exist_ok=True)
        file = stack.enter_context(open(folder / '.running', 'a+'))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConfigError(f'another training (process {file.read().strip() or "unknown"}) runs in '
                              f'{folder.absolute()}. Stop it, or give another --work-dir') from None
        except OSError as error:
            print_log(f'{file.name} cannot be locked on this file system ({error}): make sure that no other training '
                      'writes to this folder', logger='current', level=logging.WARNING)
        else:
            for inside in folder.glob('.measured_????????/.running'):  # of --minutes, which had this lock
                shutil.rmtree(inside.parent, ignore_errors=True)
        os.register_at_fork(after_in_child=file.close)  # workers may outlive the process by seconds
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        for part in folder.glob('*.part'):  # of killed trainings
            if re.search(r'\.[0-9a-f]{8}\.part$', part.name):  # not a user's download
                part.unlink(missing_ok=True)
        stack.pop_all()
        return file


def claim_work_dir(work_dir, resumes=None, run=None, weights=None) -> Notes:
    """Claim a locked work dir for a run, and return what this run has written there so far.

    Checkpoints of another run are moved into a subfolder. A resumed run has a checkpoint that it ``resumes`` and its
    ``run_id``, None for those of mmengine. A new run may have the file of the ``weights`` that it starts from.
    `CheckpointError` if the folder cannot be written to; `ConfigError` if the file to start from would be moved, or is
    a copy among the files of another run.
    """
    if resumes is not None and is_checkpoint_of(work_dir, resumes):
        notes = read_notes(work_dir) or Notes('')
        noted = {place_of(Path(work_dir, name)): name for name in (*notes.checkpoints, *notes.best)}
        others = [name for place, name in noted.items() if place != place_of(resumes) and place.is_file()]
        if run == notes.run or others and run is None and place_of(resumes) in noted:
            return notes
        if others:
            raise ConfigError(f'{resumes} {"may be" if run is None else "is"} from a different run than {others[0]} in '
                              'the same folder, and this run would replace the files of that run. Use another work '
                              f'dir: --work-dir DIR --resume {resumes}')
        return Notes(run or uuid4().hex)  # written by mmengine, which notes nothing, or copied into an empty folder
    if resumes is None and weights is not None and Path(weights).exists() and is_checkpoint_of(work_dir, weights):
        raise ConfigError(f'this run starts from {weights}, which is in its own work dir, where its checkpoints would '
                          'replace the file. Give another --work-dir')
    if old := checkpoints_in(work_dir):  # none of them must be resumed by mistake
        # if this is interrupted, the pointer must not name a moved file, and the notes must list those not yet moved
        pointer, notes = ([path] if (path := Path(work_dir, name)).is_file() else [] for name in (POINTER, NOTES))
        aside = move_aside(work_dir, [*pointer, *old, *notes])
        print_log(f'moved {counted(len(old), "checkpoints")} of an earlier run into {aside}', logger='current',
                  level=logging.WARNING)
    return Notes(uuid4().hex)


def keep_others(work_dir, name: str, notes: Notes):
    """Before a run writes a file, move an existing file of that name that the run did not write; `CheckpointError` if
    the folder cannot be written to."""
    path = Path(work_dir, name)
    if name not in (*notes.checkpoints, *notes.best) and os.path.lexists(path):
        print_log(f'{path} was not written by this run, which would replace it. It was moved into '
                  f'{move_aside(work_dir, [path])}', logger='current', level=logging.WARNING)


def move_aside(work_dir, paths) -> Path:
    """Move files of a work dir, in the given order, into a new folder in it, and return that folder; `CheckpointError`
    if this fails."""
    aside = Path(work_dir, time.strftime('before_%Y%m%d_%H%M%S'))
    while aside.exists():
        aside = aside.with_name(f'{aside.name}_')
    with named_errors(aside):
        aside.mkdir()
        for path in paths:
            path.rename(aside / path.name)
    return aside


@contextmanager
def named_errors(path):
    """Turn errors of writing to ``path`` into one that names the file."""
    try:
        yield path
    except XCiTDenseError:
        raise
    except (OSError, RuntimeError) as error:  # torch's writer raises the latter while it handles the former
        number = getattr(error, 'errno', None) or getattr(error.__context__, 'errno', None)
        if number is None:
            raise
        raise CheckpointError(f'cannot write {path}: {os.strerror(number)}. Free disk space, make it writable, or give '
                              'another --work-dir.') from error


def publish_config(file: Path, work_dir) -> str:
    """Copy the config of a training from next to its log into its work dir, unless it would replace a user's file.

    Returns where the config is now, relative to the work dir; '' if it is outside of it. `CheckpointError` if the copy
    cannot be written.
    """
    target = Path(work_dir, file.name)
    try:
        with OwnFiles(work_dir, 'train') as own, named_errors(target):
            own.claim(file.name)
            with atomic_write(target) as part:
                shutil.copyfile(file, part)
        return file.name
    except OutputError:
        print_log(f'{target} was not written by a training and is kept; the config of this one is {file}',
                  logger='current')
        return name if lies_within(name := os.path.relpath(file, work_dir)) else ''


def config_of_run(work_dir) -> Path:
    """Return the config of the training in a work dir; `ConfigError` if there is no training, or it is not known which
    config is its."""
    folder, notes = Path(work_dir), read_notes(work_dir)
    if notes and notes.config and (folder / notes.config).is_file():
        return folder / notes.config
    # of a run of plain mmengine, or of one that came without its notes
    own = [folder / name for name in OwnFiles(folder, 'train').names() if name.endswith('.py')]
    found = own or [*folder.glob('*.py')] * bool(checkpoints_in(folder))
    if len(found) != 1:
        what = f'several configs: {listed(sorted(path.name for path in found))}' if found else 'no training'
        raise ConfigError(f'the folder {work_dir} has {what}. Give CONFIG CHECKPOINT in place of a work dir')
    return found[0]


def find_model(config, checkpoint=None, last=None) -> tuple:
    """Return config and checkpoint from the arguments of a tool, where a work dir can stand for one or both.

    Args:
        config: Name or path of a config; or a work dir, whose config is meant and, without ``checkpoint``, its best
            checkpoint.
        last: What follows these two, such as images.

    `ConfigError` if an argument is missing or in the wrong place.
    """
    if Path(str(checkpoint)).suffix.lower() in IMAGE_SUFFIXES:
        raise ConfigError(f'{checkpoint} is an image, where CHECKPOINT stands. IMAGES is one argument: for several, a '
                          'folder or a list (.txt)')
    if Path(config).is_dir() and not (checkpoint and config in list_models()):
        try:
            return str(config_of_run(config)), checkpoint or config
        except ConfigError:
            if not _is(config_of_run, last):
                raise
            raise ConfigError(f'{config} has no training. The work dir comes first: {last} {config}') from None
    if checkpoint:
        return config, checkpoint
    if _is(config_of_run, last) and not _is(find_config, config):
        raise ConfigError(f'the work dir comes first: {last} {config}')
    find_config(config)
    raise ConfigError(f'an argument is missing after {config}: CONFIG needs CHECKPOINT, and the work dir of a training '
                      'stands for both')


def _is(find, name):
    try:
        return name is not None and bool(find(name))
    except ConfigError:
        return False
