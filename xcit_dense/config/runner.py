"""Lets any config train with our runner, loops and hooks, where it has none or the plain ones of mmengine."""
import logging
import os

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import HOOKS, LOOPS, RUNNERS, VISBACKENDS

from .._utils.text import type_name
from .tasks import class_of

#: Classes of mmengine, and those that replace them.
_OURS = dict(EpochBasedTrainLoop='DenseEpochLoop', IterBasedTrainLoop='DenseIterLoop',
             CheckpointHook='DenseCheckpointHook', LocalVisBackend='DenseVisBackend')
_UNSAVED = 'Ctrl-C and SIGTERM end the run without saving'
_INEXACT = f'{_UNSAVED}, and --resume does not continue exactly'


def use_our_runner(cfg: Config, trains: bool = True):
    """Let a config use `DenseRunner` and, in a training, our loops and hooks instead of mmengine's plain ones.

    A user's own classes stay, and a warning says what is lost with each. A config with another ``runner_type``, such as
    ``'Runner'``, stays as it is.
    """
    hooks = dict(cfg.get('default_hooks') or {})
    saving = hooks.setdefault('checkpoint', dict(type='CheckpointHook', interval=1))  # mmengine's default
    refused = refused_options(saving or {})
    # only mmengine's runner writes to other places than a disk
    remote = trains and any('://' in text or '_args' in text for text in refused)
    kind = cfg.get('runner_type', 'Runner' if remote else 'DenseRunner')
    if not _is_dense(kind):
        if trains:
            _warn(f'runner_type = {type_name(kind)}', f'{_INEXACT}, or not at all with torch 2.6 and later; nothing is '
                  'fitted to the data, and the log has no start and end of ours', refused)
        return
    if trains and 'runner_type' not in cfg:
        print_log("DenseRunner trains, with its loops and hooks; runner_type = 'Runner' in the config keeps mmengine's",
                  logger='current')
    cfg.runner_type, loop = kind, cfg.get('train_cfg')
    if not trains or not isinstance(loop, dict):
        return
    if 'type' not in loop and 'by_epoch' in loop:
        loop['type'] = 'EpochBasedTrainLoop' if loop.pop('by_epoch') else 'IterBasedTrainLoop'
    if not _use_ours(loop, LOOPS):
        _warn(f'train_cfg.type = {type_name(loop.get("type"))}', _INEXACT)
    if refused or saving and not _use_ours(saving, HOOKS):
        _warn(f'default_hooks.checkpoint = {type_name(saving.get("type"))}', f'{_UNSAVED}, and files of another run in '
              'the work dir may be replaced', refused)
    custom = {type_name(hook.get('type')) for hook in cfg.get('custom_hooks') or ()}
    for name, hook in (('startup', 'StartupHook'), ('ending', 'EndingHook')):
        if hook not in custom:
            hooks.setdefault(name, dict(type=hook))
    cfg.default_hooks = hooks
    for backend in (cfg.get('visualizer') or {}).get('vis_backends') or ():
        _use_ours(backend, VISBACKENDS)


def is_ours(cfg: Config) -> bool:
    """Whether `DenseRunner`, or a class based on it, runs a config."""
    return _is_dense(cfg.get('runner_type', 'Runner'))


def refused_options(hook) -> list:
    """Return the options of a checkpoint hook that `DenseCheckpointHook` does not take, as texts."""
    given = [f'{name}={hook[name]!r}' for name in ('out_dir', 'backend_args', 'file_client_args', 'published_keys')
             if hook.get(name)]
    template = hook.get('filename_tmpl') or ''
    return given + [f'filename_tmpl={template!r}'] * (os.path.basename(template) != template)


def _use_ours(node, registry) -> bool:
    """Put our class into a part of a config, for a plain one; return False if it has neither, but a user's class."""
    kind = class_of(node.get('type'), registry)
    names = _bases(kind)
    if names and names[0] in _OURS and kind.__module__.startswith('mmengine.'):
        node['type'] = _OURS[names[0]]
        return True
    return not names or bool({*names} & {*_OURS.values()})  # the check of the config reports an unknown type


def _is_dense(kind):
    return 'DenseRunner' in _bases(class_of(kind, RUNNERS))


def _bases(kind):
    return [base.__name__ for base in getattr(kind, '__mro__', ())]


def _warn(what, lost, options=()):
    """Tell in one line what a run lacks."""
    why = f' ({", ".join(options)})' if options else ''
    print_log(f'{what}{why} stays, so {lost}', logger='current', level=logging.WARNING)
