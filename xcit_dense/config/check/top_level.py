"""Names at the top level of a config and of ``--cfg-options``: does something read them, and in time?"""
import inspect
import re
from contextlib import suppress
from pathlib import Path

from mmengine.config import Config
from mmengine.runner import Runner

from ..._utils.text import shown
from .keys import Hint, dicts_by_key, finding, meant_by, value_at

#: Keys that mmengine's runner reads in addition to its arguments, or that its registry, `load_config` or a tool reads.
_TOP_LEVEL = ('activation_checkpointing', 'classes_from_data', 'compile', 'config_findings', 'custom_imports',
              'efficient_conv_bn_eval', 'find_unused_parameters', 'fitted', 'fitted_to',
              'init_from', 'model_wrapper_cfg', 'runner_type', 'sync_bn', 'timed', 'val_share', '_scope_')
#: Keys of mmdet 2 and mmseg 0, and what replaced them.
_OLD = dict(
    checkpoint_config='default_hooks.checkpoint', cudnn_benchmark='env_cfg.cudnn_benchmark',
    data='train_dataloader, val_dataloader and test_dataloader', dist_params='env_cfg.dist_cfg',
    evaluation='val_evaluator, test_evaluator and train_cfg.val_interval',
    fp16="optim_wrapper.type = 'AmpOptimWrapper' (--amp)", log_config='default_hooks.logger and visualizer',
    lr_config='param_scheduler', optimizer='optim_wrapper.optimizer', optimizer_config='optim_wrapper.clip_grad',
    resume_from='load_from together with resume = True', runner='train_cfg', seed='randomness.seed',
    total_epochs='train_cfg.max_epochs', workflow='val_cfg')
#: The options of the tools that change a key or, by its usual name, a variable.
_OPTIONS = ((r'\.batch_augments\b', '--canvas'),
    (r'(data_preprocessor|pipeline\b).*\.(scales?|img_scale|crop_size|size)(\.|$)|^((img_)?scale|crop_size)$',
     '--image-size'), (r'^(image|img)_size$', '--image-size'),
    (r'^(train_cfg\.)?(max_)?epochs$', '--epochs'), (r'^(train_cfg\.)?max_iters$', '--iterations'),
    (r'^(optim_wrapper\.(\w+\.)?optimizer\.)?(lr|learning_rate)$', '--lr'),
    (r'^(train_dataloader\.)?batch_size$', '--batch-size'),
    (r'^(\w+_dataloader\.(num|persistent)_workers|(num_)?workers)$', '--workers'), (r'(^|\.)data_root$', '--data-root'),
    (r'custom_hooks\.ValLossHook\b', '--val-loss'), (r'custom_hooks\.LoggersHook\b', '--log'),
    (r'custom_hooks\.EarlyStoppingHook\b', '--patience'), (r'custom_hooks\.CompileHook\b', '--compile'),
    (r'optim_wrapper\.type$', '--amp'))


def check_top_level(cfg) -> list:
    """Return the findings of top-level keys.

    Configs have their own variables at the top level. So a key is a finding only if no file of the config uses it and
    it is nearly the name of a key that is read. A key that the frameworks read until version 2 is a hint. Neither is
    reported if a file without a base also sets the key that is meant: a dumped config has all variables, already used.
    A variable that is set too late is a hint.
    """
    known = known_names(cfg)
    whole = [text for _, text in files_of(cfg) if not re.search(r'^(_base_\s*=|with read_base)', text, re.M)]
    findings = []
    for name, value in cfg.items():
        if name in known or _uses(cfg.text or '', name):
            continue
        meant = re.match(r'\w+', _OLD[name])[0] if name in _OLD else meant_by(name, known)
        if meant is None or any(_sets(text, name) and _sets(text, meant) for text in whole):
            continue
        if name in _OLD:
            findings.append(Hint(finding(name, value, 'nothing reads it since version 2 of the frameworks; use '
                                         f'{_OLD[name]} instead')))
        else:
            findings.append(finding(name, value, 'nothing reads it', name, known))
    return findings + _find_late(cfg, known)


def known_names(cfg):
    """Return the names that something reads at the top level of a config."""
    return {*inspect.signature(Runner.__init__).parameters, *_TOP_LEVEL} - {'self', 'cfg'}


def _find_late(cfg, known):
    """Return a hint for each variable that a config sets after a base has used it, if keys keep the base's value.

    mmengine runs a whole base with its own values first, and merges the config into the result. So
    ``scale = (320, 320)`` in a config changes no pipeline of a base that uses ``scale``. A variable that is also used
    in the file that sets it, or after it, gives no hint: its author knows what it does.
    """
    hints, files = {}, files_of(cfg)
    for place in range(len(files) - 1, 0, -1):
        setter, text = files[place]
        for name in {*re.findall(r'^([a-zA-Z]\w*)\s*=(?!=)', text, re.M)} - known - {*hints}:
            owner = next((path for path, base in files[place - 1::-1] if _sets(base, name)), None)
            if owner is None or any(_uses(later, name) for _, later in files[place:]):
                continue
            value = None
            with suppress(Exception):  # a config is a program: anything may happen in it
                value = Config.fromfile(owner, import_custom_modules=False).get(name)
            keys = [] if value in (None, cfg.get(name)) else _made_with(cfg, name, value, known)
            if keys:
                hints[name] = Hint(finding(name, cfg.get(name), (
                    f'{Path(setter).name} sets it too late, after {Path(owner).name} used its own value: '
                    f'{shown(value, 40)} stays in effect. Set {named(keys)}')))
    return list(hints.values())


def _made_with(cfg, name, value, known):
    """Return the dotted keys with the value of a variable, if a file sets such keys to the variable: ``end=max_iters``.

    If it also sets such a key to the same value in figures, nothing shows which is which: it is left out.
    """
    text = cfg.text or ''
    names = {key for key in re.findall(rf'''(\w+)['"]?\s*[=:]\s*(?:{{{{\s*)?(?:_base_\.)?{re.escape(name)}\b''', text)
             if not re.search(rf'''[^\n]\b{key}['"]?\s*[=:]\s*{re.escape(repr(value))}(?![\w.])''', text)}
    return [f'{path}.{key}' for part in cfg if part in known for path, node in dicts_by_key(cfg[part], part)
            for key, child in node.items() if key in names and child == value]


def option_for(key) -> str:
    """Return the option of the tools that changes a dotted key, or a variable with a usual name; '' without one."""
    return next((option for pattern, option in _OPTIONS if re.search(pattern, key)), '')


def named(keys) -> str:
    """Return dotted keys as text, with the options that change them."""
    options = list(dict.fromkeys(filter(None, map(option_for, keys))))
    more = f' and {len(keys) - 4} more' if len(keys) > 4 else ''
    return ', '.join(keys[:4]) + more + (f' ({", ".join(options)})' if options else '')


def find_new_keys(cfg, options) -> dict:
    """Return findings, by key, on dotted options (None: no options) for the config that they will be merged into:

    - A top-level key that nothing reads: a misspelt one, or a variable that the config file used when it was read. Any
      other unknown key is a hint, as a hook of your own may read it.
    - A new key next to one of nearly the same name, in a dict without a ``type``; `check_config` checks the others.
    - A key below a value that is neither a dict nor a list, or beyond the end of a list.
    """
    found = {path: _find_new_key(cfg, path, value, options) for path, value in (options or {}).items()}
    return {path: line for path, line in found.items() if line}


def _find_new_key(cfg, path, value, options):
    name, known = path.partition('.')[0], known_names(cfg)
    if name not in known:
        if name in cfg and _uses(cfg.text or '', name):
            keys = _made_with(cfg, name, cfg[name], known)
            return finding(path, value, 'no effect, as the config file has already used this variable; set '
                           f'{named(keys) if keys else "what it was used for"}')
        if name not in cfg and meant_by(name, known):
            return finding(path, value, 'nothing reads it', name, known)
        use = f'; use {option_for(path)}' if option_for(path) else ''
        return Hint(finding(path, value, f'no framework reads it{use}'))
    node, parts = dict(cfg.items()), path.split('.')
    for place, part in enumerate(parts):
        parent, is_last = '.'.join(parts[:place]), place + 1 == len(parts)
        if isinstance(node, dict) and part not in node:
            unlike = 'type' in node or 'custom_keys' in parts[:place] or not meant_by(part, node)
            return None if unlike else finding(f'{parent}.{part}', value, 'there is no such key', part, node)
        below = value_at(node, part)
        if not isinstance(node, dict) and (is_last or not isinstance(node, list) or below is None):
            return None if f'{parent}._delete_' in options else finding(
                path, value, f'{parent} is {shown(node)}, so this cannot be set; set it as a whole')
        node = below
    return None


def files_of(cfg):
    """Return path and text of each file of a config, bases first: mmengine writes the path before each text."""
    files = [['', '']]
    for line in (cfg.text or '').splitlines(keepends=True):
        if line.rstrip().endswith('.py') and Path(line.rstrip()).is_file():
            files.append([line.rstrip(), ''])
        else:
            files[-1][1] += line
    return files


def _uses(text, name):
    """Whether the text of a config uses a top-level name."""
    text = re.sub('#.*', '', text)
    return re.search(rf'''(?<![\w.'"]){re.escape(name)}\b(?!\s*=[^=])|_base_\.{re.escape(name)}\b''', text) is not None


def _sets(text, name):
    return re.search(rf'^{re.escape(name)}\s*=', text, re.M) is not None
