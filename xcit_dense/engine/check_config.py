"""What is wrong with a config, all at once and before anything is built.

Keys that nothing reads, types that are not there, channels and strides that do not fit, rules for parameters that are
not there.
"""
import inspect
import re

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, RUNNERS
from mmengine.runner import Runner
from torch import nn

from ..errors import ConfigError
from .check_shapes import check_shapes
from .config_walk import ConfigWalker, finding, near
from .signatures import mentioned_names

#: Read from a config by mmengine's runner beside its arguments, by its registry, by `load_config` and the tools.
_TOP_LEVEL = ('activation_checkpointing', 'classes_from_data', 'compile', 'custom_imports', 'efficient_conv_bn_eval',
              'find_unused_parameters', 'model_wrapper_cfg', 'runner_type', 'sync_bn', '_scope_')
#: Keys of mmdet 2 and mmseg 0, and what took their place.
_OLD = dict(
    checkpoint_config='default_hooks.checkpoint', cudnn_benchmark='env_cfg.cudnn_benchmark',
    data='train_dataloader, val_dataloader and test_dataloader', dist_params='env_cfg.dist_cfg',
    evaluation='val_evaluator, test_evaluator and train_cfg.val_interval',
    fp16="optim_wrapper.type = 'AmpOptimWrapper' (--amp)", log_config='default_hooks.logger and visualizer',
    lr_config='param_scheduler', optimizer='optim_wrapper.optimizer', optimizer_config='optim_wrapper.clip_grad',
    resume_from='load_from together with resume = True', runner='train_cfg', seed='randomness.seed',
    total_epochs='train_cfg.max_epochs', workflow='val_cfg')


def check_config(cfg):
    """Check a config before its runner is built.

    Every dict with a ``type`` is compared with the arguments of its class, as far as its code tells them surely, and
    dicts without a type with the names in the code that reads them. `check_shapes` is part of it.

    A top-level name is a finding only where no file of the config uses it, for configs keep their own variables
    there, and it is either nearly a name that is read, or one that frameworks read until version 2.

    Args:
        cfg: The config, its custom imports done (`load_config` does them).

    Raises:
        ConfigError: It lists all findings, each with path, value and mend.
    """
    walker = ConfigWalker(cfg)
    walker.check_all()
    _raise_all(_check_top_level(cfg, walker.resolve) + walker.findings + check_shapes(cfg, walker.resolve))


def check_new_keys(cfg, options):
    """Check dotted options against the config that they will be merged into.

    A top-level key is a finding unless something reads it: a variable of the file was used up when the file was read.
    So is a new key beside one of nearly the same name, in a dict without a ``type``; the others are `check_config`'s.

    Args:
        cfg: The config, before the options.
        options: Values by dotted key, as mmengine's ``DictAction`` gives them.

    Raises:
        ConfigError: It lists all findings.
    """
    findings = []
    for path, value in (options or {}).items():
        name = path.partition('.')[0]
        if name not in _known_names(cfg):
            if name in cfg:
                findings.append(finding(path, value, 'a variable of the config file, which was used up when the file '
                                         'was read; set the keys that it was used for'))
            else:
                findings.append(finding(path, value, 'nothing reads it', name, _known_names(cfg)))
            continue
        node, done = dict(cfg.items()), []
        for part in path.split('.'):
            done.append(part)
            if isinstance(node, (list, tuple)) and part.isdigit() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, dict) and part in node:
                node = node[part]
            else:
                if isinstance(node, dict) and 'type' not in node and 'custom_keys' not in done and near(part, node):
                    findings.append(finding('.'.join(done), value, 'there is no such key', part, node))
                break
    _raise_all(findings)


def check_paramwise(cfg, model):
    """Check that every rule for learning rates and weight decay reaches a parameter of the model.

    Args:
        cfg: The config; its ``optim_wrapper.paramwise_cfg`` is looked at.
        model: The built model, wrapped for a distributed run or not.

    Raises:
        ConfigError: It lists every key of ``custom_keys``, and every ``*_mult``, that changes no parameter.
    """
    wrapper = cfg.get('optim_wrapper') or {}
    rules = wrapper.get('paramwise_cfg') if isinstance(wrapper, dict) else None
    constructor = wrapper.get('constructor', 'DefaultOptimWrapperConstructor') if rules else None
    if isinstance(constructor, str):
        constructor = ConfigWalker(cfg).resolve(constructor, OPTIM_WRAPPER_CONSTRUCTORS)
    if getattr(constructor, 'add_params', None) is not DefaultOptimWrapperConstructor.add_params:
        return  # others have rules of their own
    path = 'optim_wrapper.paramwise_cfg'
    model = getattr(model, 'module', model)
    parameters = [(f'{prefix}.{name}', module, parameter) for prefix, module in model.named_modules()
                  for name, parameter in module.named_parameters(recurse=False)]
    trained = [part for part in parameters if part[2].requires_grad]
    custom = rules.get('custom_keys') or {}
    findings, words = [], {word for name, *_ in parameters for word in name.split('.')}
    for key, value in custom.items():
        if not any(key in name for name, *_ in parameters):
            findings.append(finding(f'{path}.custom_keys.{key}', value,
                                     'no parameter of the model has this in its name', key, words))
        elif not any(key in name for name, *_ in trained):
            findings.append(finding(f'{path}.custom_keys.{key}', value, 'all parameters with this name are frozen'))
    others = [part for part in trained if not any(key in part[0] for key in custom)]
    for key, applies in _RULES.items():
        if rules.get(key) is not None and not any(applies(*part) for part in others):
            findings.append(finding(f'{path}.{key}', rules[key], 'no trained parameter of the model is of this kind '
                                     'and outside of custom_keys'))
    _raise_all(findings)


def _is_norm(module):
    return isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm,
                               nn.LayerNorm))


def _is_plain_bias(name, module, parameter):
    return name.endswith('.bias') and not _is_norm(module)


#: What mmengine applies each of these to: name, module and parameter.
_RULES = dict(
    bias_lr_mult=_is_plain_bias,
    bias_decay_mult=_is_plain_bias,
    norm_decay_mult=lambda name, module, parameter: _is_norm(module),
    dwconv_decay_mult=lambda name, module, parameter: (
        isinstance(module, nn.Conv2d) and module.in_channels == module.groups),
    flat_decay_mult=lambda name, module, parameter: parameter.ndim == 1,
    dcn_offset_lr_mult=lambda name, module, parameter: 'conv_offset' in name)


def _check_top_level(cfg, resolve) -> list:
    known = _known_names(cfg)
    text = re.sub('#.*', '', cfg.text or '')
    read = mentioned_names([resolve(cfg.get('runner_type', 'Runner'), RUNNERS) or Runner]) or set()
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
        elif name not in read and near(name, known):
            findings.append(finding(name, value, 'nothing reads it', name, known))
    return findings


def _known_names(cfg):
    """Return the names that something reads at the top level of a config."""
    return {*inspect.signature(Runner.__init__).parameters, *_TOP_LEVEL} - {'self', 'cfg'}


def _holds(node, value):
    if isinstance(node, dict):
        return node == value or any(_holds(part, value) for part in node.values())
    return node == value or isinstance(node, (list, tuple)) and any(_holds(part, value) for part in node)


def _raise_all(findings):
    if findings:
        title = 'one thing in the config' if len(findings) == 1 else f'{len(findings)} things in the config'
        raise ConfigError(f'{title} cannot be right:\n' + '\n'.join(f'  {line}' for line in findings))
