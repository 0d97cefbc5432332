"""The names at the top level of a config: does something read each one?"""
import inspect
import re

from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from .findings import finding, near
from .keys import class_of, is_known

#: Read from a config by mmengine's runner beside its arguments, by its registry, by `load_config` and the tools.
_TOP_LEVEL = ('activation_checkpointing', 'classes_from_data', 'compile', 'config_findings', 'custom_imports',
              'efficient_conv_bn_eval', 'find_unused_parameters', 'model_wrapper_cfg', 'runner_type',
              'sync_bn', '_scope_')
#: Keys of mmdet 2 and mmseg 0, and what took their place.
_OLD = dict(
    checkpoint_config='default_hooks.checkpoint', cudnn_benchmark='env_cfg.cudnn_benchmark',
    data='train_dataloader, val_dataloader and test_dataloader', dist_params='env_cfg.dist_cfg',
    evaluation='val_evaluator, test_evaluator and train_cfg.val_interval',
    fp16="optim_wrapper.type = 'AmpOptimWrapper' (--amp)", log_config='default_hooks.logger and visualizer',
    lr_config='param_scheduler', optimizer='optim_wrapper.optimizer', optimizer_config='optim_wrapper.clip_grad',
    resume_from='load_from together with resume = True', runner='train_cfg', seed='randomness.seed',
    total_epochs='train_cfg.max_epochs', workflow='val_cfg')


def check_top_level(cfg) -> list:
    """Return the findings of top-level names.

    Configs keep their own variables there: a name is a finding only where no file of the config uses it, and it is
    either nearly a name that is read, or one that frameworks read until version 2.
    """
    known = known_names(cfg)
    text = re.sub('#.*', '', cfg.text or '')
    runner = class_of(cfg.get('runner_type', 'Runner'), RUNNERS)
    knows_runner = runner is None or is_known(runner)  # another may read names of its own
    findings = []
    for name, value in cfg.items():
        used = re.search(rf'''(?<![\w.'"]){re.escape(name)}\b(?!\s*=[^=])|_base_\.{re.escape(name)}\b''', text)
        if name in known or used:
            continue
        if name in _OLD:
            # a dumped config has the variables of the config that it was made of, used up
            if not any(_holds(cfg[other], value) for other in cfg if other != name):
                findings.append(finding(name, value, f'nothing reads it since version 2 of the frameworks; its place '
                                        f'is {_OLD[name]}'))
        elif knows_runner and near(name, known):
            findings.append(finding(name, value, 'nothing reads it', name, known))
    return findings


def known_names(cfg):
    """Return the names that something reads at the top level of a config."""
    return {*inspect.signature(Runner.__init__).parameters, *_TOP_LEVEL} - {'self', 'cfg'}


def _holds(node, value):
    if isinstance(node, dict):
        return node == value or any(_holds(part, value) for part in node.values())
    return node == value or isinstance(node, (list, tuple)) and any(_holds(part, value) for part in node)
