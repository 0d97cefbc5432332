"""Whose a work dir is: a run takes a folder of its own, or one in which it goes on."""
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from mmengine.logging import print_log

from ..errors import ConfigError
from ..weights.work_dirs import NOTES, POINTER, Notes, checkpoints_in, is_checkpoint_of, place_of, read_notes
from .locking import lock_work_dir
from .resuming import check_resumable
from .writing import named_errors


def check_work_dir(cfg, overwrite: bool = False):
    """Raise an error before anything is written to a work dir that is not free, or where there is nothing to resume.

    Args:
        cfg: The config, with ``work_dir``, and where the run goes on ``resume`` and perhaps ``load_from``.
        overwrite: Whether checkpoints of another run may be there, which `claim_work_dir` moves.

    Raises:
        CheckpointError: The folder cannot be written to, or there is nothing to go on from.
        ConfigError: A training runs there, or another one did.
    """
    folder = Path(cfg.work_dir)
    resumes = (cfg.get('load_from') or cfg.work_dir) if cfg.get('resume') else None
    if resumes:
        check_resumable(cfg.get('load_from'), cfg.work_dir)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with lock_work_dir(folder):  # the runner takes it again
        if made:  # until the run begins nothing stays; the name goes while nobody else can have locked it
            (folder / '.running').unlink(missing_ok=True)
    if made:
        with suppress(OSError):
            for path in made:
                path.rmdir()
    found = checkpoints_in(folder)
    if found and not overwrite and not (resumes and is_checkpoint_of(folder, resumes)):
        other = 'another run than the one to resume' if resumes else 'an earlier run'
        raise ConfigError(f'{folder.absolute()} holds checkpoints of {other}, such as {found[0].name}: go on with that '
                          'one (--resume without FILE), name another --work-dir, or take this one with --overwrite, '
                          'which moves them into a folder in it')


def claim_work_dir(work_dir, resumes=None, run=None, weights=None) -> Notes:
    """Take a locked work dir for a run; checkpoints of another one are moved into a folder of their own.

    Args:
        work_dir: The folder.
        resumes: The checkpoint that the run goes on from; None for a new run.
        run: What that checkpoint has as ``run_id``; None of mmengine's and of older versions.
        weights: The file of weights that a new run begins with.

    Returns:
        What this run has written there so far.

    Raises:
        CheckpointError: The folder cannot be written to.
        ConfigError: What the run begins with would be moved, or is a copy among the files of another run.
    """
    if resumes is not None and is_checkpoint_of(work_dir, resumes):
        notes = read_notes(work_dir)
        others = [name for name in (*notes.checkpoints, *notes.best) if Path(work_dir, name).is_file()
                  and place_of(Path(work_dir, name)) != place_of(resumes)] if notes else []
        if not others:  # of a version that took no notes, or copied into an empty folder
            own = notes.checkpoints if notes and notes.run == run else []
            return Notes(run or uuid4().hex, own)
        noted = place_of(resumes) in (place_of(Path(work_dir, name)) for name in notes.checkpoints)
        if run != notes.run and not (run is None and noted):
            said = 'does not say that it is of the run of' if run is None else 'is of another run than'
            raise ConfigError(f'{resumes} {said} {others[0]} beside it, whose files this one would replace: name '
                              'another --work-dir, and the file with --resume FILE')
        return notes
    if resumes is None and weights is not None and Path(weights).exists() and is_checkpoint_of(work_dir, weights):
        raise ConfigError(f'{weights}, which the run is to begin with, is in the work dir of this very run, whose '
                          'checkpoints would replace it: name another --work-dir')
    move_old_checkpoints(work_dir)
    return Notes(uuid4().hex)


def move_old_checkpoints(work_dir):
    """Move the checkpoints of an earlier run into a folder of their own, so that none is resumed by mistake.

    Raises:
        CheckpointError: The folder cannot be written to.
    """
    old = checkpoints_in(work_dir)
    if old:
        # cut off in between, nothing may point at a checkpoint that is gone, and the notes tell of those that are left
        pointer, notes = ([path] if (path := Path(work_dir, name)).is_file() else [] for name in (POINTER, NOTES))
        aside = move_aside(work_dir, [*pointer, *old, *notes])
        print_log(f'moved the {len(old)} checkpoints of an earlier run into {aside}', logger='current',
                  level=logging.WARNING)


def keep_others(work_dir, name: str, notes: Notes):
    """Before a run writes a file, move one of that name that it has not noted, so that nobody's is lost.

    Raises:
        CheckpointError: The folder cannot be written to.
    """
    path = Path(work_dir, name)
    if name not in (*notes.checkpoints, *notes.best) and os.path.lexists(path):
        print_log(f'{path} was not written by this run, which would replace it: moved into '
                  f'{move_aside(work_dir, [path])}', logger='current', level=logging.WARNING)


def move_aside(work_dir, paths) -> Path:
    """Move files of a work dir, in their order, into a new folder in it, and return that.

    Raises:
        CheckpointError: The folder cannot be written to.
    """
    aside = Path(work_dir, time.strftime('before_%Y%m%d_%H%M%S'))
    while aside.exists():
        aside = aside.with_name(f'{aside.name}_')
    with named_errors(aside):
        aside.mkdir()
        for path in paths:
            place = aside / path.relative_to(work_dir)
            place.parent.mkdir(exist_ok=True, parents=True)
            path.rename(place)
    return aside
