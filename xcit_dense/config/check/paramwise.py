"""Rules for learning rates and weight decay: does each one reach a parameter?"""
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from .findings import Hint, finding, slip, tell
from .keys import class_of


def check_paramwise(cfg, model):
    """Check that every rule for learning rates and weight decay reaches a parameter of the model.

    Recipes carry rules for parts that another model has not: what reaches no parameter is told in the log, and is an
    error where a key has a slip. Frozen parameters count, so that freezing more makes no rule wrong.

    Args:
        cfg: The config; its ``optim_wrapper.paramwise_cfg`` is looked at.
        model: The built model, wrapped for a distributed run or not.

    Raises:
        ConfigError: It lists the keys of ``custom_keys`` that match no parameter and are nearly the name of one; with
            ``config_findings = 'warn'`` in the config the log does.
    """
    wrapper = cfg.get('optim_wrapper') or {}
    rules = wrapper.get('paramwise_cfg') if isinstance(wrapper, dict) else None
    constructor = wrapper.get('constructor', 'DefaultOptimWrapperConstructor') if rules else None
    if isinstance(constructor, str):
        constructor = class_of(constructor, OPTIM_WRAPPER_CONSTRUCTORS, cfg.get('default_scope'))
    if getattr(constructor, 'add_params', None) is not DefaultOptimWrapperConstructor.add_params:
        return  # others have rules of their own
    path = 'optim_wrapper.paramwise_cfg'
    model = getattr(model, 'module', model)
    parameters = [(f'{prefix}.{name}', module, parameter) for prefix, module in model.named_modules()
                  for name, parameter in module.named_parameters(recurse=False)]
    custom = rules.get('custom_keys') or {}
    findings, words = [], {word for name, *_ in parameters for word in name.split('.')}
    for key, value in custom.items():
        if not any(key in name for name, *_ in parameters):
            wrong, meant = _find_slip(key, words)
            line = finding(f'{path}.custom_keys.{key}', value, 'no parameter of the model has this in its name', wrong,
                           [meant] if meant else ())
            findings.append(line if meant else Hint(line))
    others = [part for part in parameters if not any(key in part[0] for key in custom)]
    for key, applies in RULES.items():
        if rules.get(key) is not None and not any(applies(*part) for part in others):
            findings.append(Hint(finding(f'{path}.{key}', rules[key], 'no parameter of the model is of this kind and '
                                         'outside of custom_keys')))
    tell(findings, cfg.get('config_findings', 'stop'))


def _find_slip(key, words):
    """Return the part of a dotted key that has a slip, and the part of a parameter's name that it was meant to be."""
    wrong = [part for part in key.split('.') if not any(part in word for word in words)]
    return next(((part, meant) for part in wrong if (meant := slip(part, words))), (None, None))


def _is_norm(module):
    return isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm,
                               nn.LayerNorm))


def _is_plain_bias(name, module, parameter):
    return name.endswith('.bias') and not _is_norm(module)


#: What mmengine applies each of these to: name, module and parameter.
RULES = dict(
    bias_lr_mult=_is_plain_bias,
    bias_decay_mult=lambda name, module, parameter: name.endswith('.bias'),  # those of norms too
    norm_decay_mult=lambda name, module, parameter: _is_norm(module),
    dwconv_decay_mult=lambda name, module, parameter: (
        isinstance(module, nn.Conv2d) and module.in_channels == module.groups),
    flat_decay_mult=lambda name, module, parameter: parameter.ndim == 1,
    dcn_offset_lr_mult=lambda name, module, parameter: 'conv_offset' in name)
