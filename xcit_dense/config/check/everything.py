"""What is wrong with a config, all at once and before anything is built.

Keys that nothing reads, types that are not there, numbers out of range, channels and strides that do not fit, rules
for parameters that are not there, schedules that do not fit the run.
"""
import inspect
import logging
import re

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIMIZERS, RUNNERS
from mmengine.runner import Runner
from torch import nn

from ...data.datasets import LOADERS
from ...errors import ConfigError
from .shapes import check_shapes
from .signatures import mentioned_names
from .walk import ConfigWalker, finding, near

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
#: Least values of the numbers that users set, by path; those of whole numbers are whole.
_LEAST = {
    **{f'{loader}.batch_size': 1 for loader in LOADERS}, **{f'{loader}.num_workers': 0 for loader in LOADERS},
    'train_cfg.max_epochs': 1, 'train_cfg.max_iters': 1, 'train_cfg.val_interval': 1, 'train_cfg.val_begin': 0,
    'default_hooks.checkpoint.interval': -1, 'auto_scale_lr.base_batch_size': 1,
    'optim_wrapper.optimizer.lr': 0., 'optim_wrapper.optimizer.weight_decay': 0.,
    'optim_wrapper.clip_grad.max_norm': 0.}


def check_config(cfg, earlier=()):
    """Check a config before its runner is built.

    Every dict with a ``type`` is compared with the arguments of its class, as far as its code tells them surely, and
    dicts without a type with the names in the code that reads them. `check_shapes` is part of it.

    A top-level name is a finding only where no file of the config uses it, for configs keep their own variables
    there, and it is either nearly a name that is read, or one that frameworks read until version 2.

    Args:
        cfg: The config, its custom imports done (`load_config` does them).
        earlier: Findings to tell first, such as `find_new_keys` has.

    Raises:
        ConfigError: It lists all findings, each with path, value and mend.
    """
    walker = ConfigWalker(cfg)
    walker.check_all()
    missing = [name for name in ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper') if not cfg.get(name)]
    if missing:
        missing = [f'{", ".join(missing)}: not there; a config of your own takes them over from the one that it names '
                   'as its _base_']
    raise_findings([*earlier, *missing, *_check_top_level(cfg, walker.resolve), *find_numbers(cfg), *walker.findings,
                    *check_shapes(cfg, walker.resolve)])


def find_new_keys(cfg, options) -> dict:
    """Compare dotted options with the config that they will be merged into.

    A top-level key is a finding unless something reads it: a variable of the file was used up when the file was read.
    So is a new key beside one of nearly the same name, in a dict without a ``type``; the others are `check_config`'s.
    And so is a key below what is no dict or list, or beyond the end of a list.

    Args:
        cfg: The config, before the options.
        options: Values by dotted key, as mmengine's ``DictAction`` gives them, or None.

    Returns:
        Findings by dotted key.
    """
    findings = {}
    for path, value in (options or {}).items():
        name = path.partition('.')[0]
        if name not in _known_names(cfg):
            if name in cfg:
                findings[path] = finding(path, value, 'a variable of the config file, which was used up when the file '
                                         'was read; set the keys that it was used for')
            else:
                findings[path] = finding(path, value, 'nothing reads it', name, _known_names(cfg))
            continue
        node, done = dict(cfg.items()), []
        for part in path.split('.'):
            parent = '.'.join(done)
            done.append(part)
            if isinstance(node, dict) and part in node:
                node = node[part]
            elif isinstance(node, dict):
                if 'type' not in node and 'custom_keys' not in done and near(part, node):
                    findings[path] = finding('.'.join(done), value, 'there is no such key', part, node)
                break
            elif isinstance(node, list) and part.isdigit() and int(part) < len(node) and len(done) <= path.count('.'):
                node = node[int(part)]
            elif f'{parent}._delete_' not in options:
                findings[path] = finding(path, value, (
                    f'{parent} is a list of {len(node)}, counted from 0: set a key of one, or the whole list'
                    if isinstance(node, list) else f'{parent} is {node!r} and has no keys'))
                break
    return findings


def find_numbers(cfg) -> list:
    """Return a finding for each of the numbers that users set, such as batch sizes, that is none or out of range."""
    schedulers = list(_schedulers(cfg.get('param_scheduler'), 'param_scheduler'))
    places = [(path, _at(cfg, path.rpartition('.')[0]), least) for path, least in _LEAST.items()]
    places += [(f'{path}.{name}', node, 0.) for path, node in schedulers for name in ('begin', 'end', 'T_max')
               if node.get(name) is not None]
    findings = []
    for path, node, least in places:
        name, whole = path.rpartition('.')[2], isinstance(least, int)
        value = node.get(name, least) if isinstance(node, dict) else least
        if value is None and path.startswith('optim_wrapper.optimizer.') and _takes_none(cfg, node, name):
            continue
        if not _is_number(value) or not least <= value < float('inf') or whole and value != int(value):
            findings.append(finding(path, value, f'it must be a {"whole " * whole}number, {least:g} or more'))
    for path, node in schedulers:
        steps = node.get('milestones', [])
        if not isinstance(steps, (list, tuple)) or not all(map(_is_number, steps)):
            findings.append(finding(f'{path}.milestones', steps, 'it must be a list of numbers, such as "[8,11]"'))
    return findings


def _takes_none(cfg, optimizer, name):
    """Whether None is the optimizer's own default of an argument, as Adafactor's of transformers is for its rate."""
    kind = ConfigWalker(cfg).resolve(optimizer.get('type'), OPTIMIZERS)
    parameter = inspect.signature(kind).parameters.get(name) if kind else None
    return parameter is not None and parameter.default is None


def _at(node, path):
    for part in path.split('.'):
        node = node.get(part) if isinstance(node, (dict, Config)) else None
    return node


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
    raise_findings(findings)


def check_schedule(cfg, epoch_length: int = None):
    """Warn, in the log, of schedulers that do not fit the length of the run: it changes without them.

    Compared is what counts in the unit of the run, epochs or iterations. The shape of steps and exponentials does not
    depend on their end, so that one beyond the run is none.

    Args:
        cfg: A config that `check_config` finds nothing in.
        epoch_length: The iterations of an epoch, for what counts iterations in a run of epochs.
    """
    unit = 'epochs' if 'max_epochs' in cfg.train_cfg else 'iterations'
    length = cfg.train_cfg.get('max_epochs', cfg.train_cfg.get('max_iters'))
    if length is None:
        return  # a loop of the user's own
    lines, ends = [], []
    for path, node in _schedulers(cfg.get('param_scheduler'), 'param_scheduler'):
        by_epoch, kind = node.get('by_epoch', True), str(node['type'])
        name, run = f'{path} ({kind})', f'{length} {unit}; {_stretch(path, node, length)}'
        warm_up = re.search('Linear|Constant|Warmup', kind)
        if by_epoch != (unit == 'epochs'):
            if by_epoch and not node.get('convert_to_iter_based') and 'Plateau' not in kind:
                lines.append(f'{name} counts epochs and this run iterations: set {path}.by_epoch=False')
            iterations = length * epoch_length if epoch_length and unit == 'epochs' else None
            if iterations and node.get('end', 0) > iterations and not re.search('Step|Exponential', kind):
                lines.append(f'{name} ends at iteration {node["end"]}, beyond the run of {iterations} iterations; '
                             + _stretch(path, node, iterations))
            if not warm_up:
                ends.append((length, None))  # it may go on to the end
            continue
        end = node.get('end') or node.get('T_max') or length
        if late := [m for m in node.get('milestones', []) if m >= length]:
            lines.append(f'{name} has the milestones {late} beyond the run of {run}')
        elif end > length and not re.search('Step|Exponential|Plateau', kind):
            lines.append(f'{name} ends at {end}, beyond the run of {run}')
        ends.append((node.get('end', length), None if late or warm_up else f'{name} ends at {end} of {run}'))
    last, early = max(ends, default=(length, None), key=lambda pair: pair[0])
    if last < 0.9 * length and early:
        lines.append(early)
    if lines:
        print_log('the schedule does not fit the run:\n' + '\n'.join(f'  {line}' for line in lines), logger='current',
                  level=logging.WARNING)


def _schedulers(node, path):
    """Yield path and dict of each scheduler; there may be one, several, or several for each optimizer."""
    if isinstance(node, dict) and 'type' in node:
        yield path, node
    elif isinstance(node, (dict, list, tuple)):
        for key, part in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _schedulers(part, f'{path}.{key}')


def _stretch(path, node, length):
    """Return the options that stretch a scheduler to the length of a run."""
    steps = node.get('milestones') or []
    factor = length / (node.get('end') or node.get('T_max') or max(steps, default=length) / 0.9 or length)
    values = {key: round(node[key] * factor) for key in ('T_max', 'end') if node.get(key)}
    if steps:
        values['milestones'] = '"[' + ','.join(str(round(step * factor)) for step in steps) + ']"'
    return 'stretch it with --cfg-options ' + ' '.join(f'{path}.{key}={value}' for key, value in values.items())


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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


def raise_findings(findings):
    """Raise `ConfigError` with all findings, unless there is none."""
    if findings:
        title = 'one thing in the config' if len(findings) == 1 else f'{len(findings)} things in the config'
        raise ConfigError(f'{title} cannot be right:\n' + '\n'.join(f'  {line}' for line in findings))
