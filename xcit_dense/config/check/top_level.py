"""Check that something reads each top-level key of a config."""
import inspect
import re
from pathlib import Path

from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from .findings import Hint, finding, meant_by
from .keys import class_of, is_known
from .variables import find_unreached

#: Keys that mmengine's runner reads in addition to its arguments, or that its registry, `load_config` or a tool reads.
_TOP_LEVEL = ('activation_checkpointing', 'classes_from_data', 'compile', 'config_findings', 'custom_imports',
              'efficient_conv_bn_eval', 'find_unused_parameters', 'init_from',
              'model_wrapper_cfg', 'runner_type', 'sync_bn', '_scope_')
#: Keys of mmdet 2 and mmseg 0, and what replaced them.
_OLD = dict(
    checkpoint_config='default_hooks.checkpoint', cudnn_benchmark='env_cfg.cudnn_benchmark',
    data='train_dataloader, val_dataloader and test_dataloader', dist_params='env_cfg.dist_cfg',
    evaluation='val_evaluator, test_evaluator and train_cfg.val_interval',
    fp16="optim_wrapper.type = 'AmpOptimWrapper' (--amp)", log_config='default_hooks.logger and visualizer',
    lr_config='param_scheduler', optimizer='optim_wrapper.optimizer', optimizer_config='optim_wrapper.clip_grad',
    resume_from='load_from together with resume = True', runner='train_cfg', seed='randomness.seed',
    total_epochs='train_cfg.max_epochs', workflow='val_cfg')


def check_top_level(cfg) -> list:
    """Return the findings of top-level keys.

    Configs have their own variables at the top level. So a key is a finding only if no file of the config uses it and
    it is nearly the name of a key that is read. A key that the frameworks read until version 2 is a hint. Neither is
    reported if a file without a base also sets the key that is meant: a dumped config has all variables, already used.
    A variable that is set too late is a hint, see `find_unreached`.
    """
    known = known_names(cfg)
    whole = [text for text in _files(cfg.text or '') if not re.search(r'^(_base_\s*=|with read_base)', text, re.M)]
    runner = class_of(cfg.get('runner_type', 'Runner'), RUNNERS)
    knows_runner = runner is None or is_known(runner)  # another may read its own names
    findings = []
    for name, value in cfg.items():
        if name in known or is_used(cfg, name):
            continue
        meant = re.match(r'\w+', _OLD[name])[0] if name in _OLD else meant_by(name, known)
        if meant is None or any(_sets(text, name) and _sets(text, meant) for text in whole):
            continue
        if name in _OLD:
            # a dumped config has the variables of its source, already used
            if not any(_holds(cfg[other], value) for other in cfg if other != name):
                findings.append(Hint(finding(name, value, 'nothing reads it since version 2 of the frameworks; use '
                                             f'{_OLD[name]} instead')))
        elif knows_runner:
            findings.append(finding(name, value, 'nothing reads it', name, known))
    return findings + find_unreached(cfg, known)


def known_names(cfg):
    """Return the names that something reads at the top level of a config."""
    return {*inspect.signature(Runner.__init__).parameters, *_TOP_LEVEL} - {'self', 'cfg'}


def is_used(cfg, name) -> bool:
    """Whether a file of a config uses a top-level name."""
    text = re.sub('#.*', '', cfg.text or '')
    return re.search(rf'''(?<![\w.'"]){re.escape(name)}\b(?!\s*=[^=])|_base_\.{re.escape(name)}\b''', text) is not None


def _files(text):
    """Return the text of each file of a config; mmengine puts the path before each."""
    files = ['']
    for line in text.splitlines(keepends=True):
        if line.rstrip().endswith('.py') and Path(line.rstrip()).is_file():
            files.append('')
        files[-1] += line
    return files


def _sets(text, name):
    return re.search(rf'^{re.escape(name)}\s*=', text, re.M) is not None


def _holds(node, value):
    if isinstance(node, dict):
        return node == value or any(_holds(part, value) for part in node.values())
    return node == value or isinstance(node, (list, tuple)) and any(_holds(part, value) for part in node)
