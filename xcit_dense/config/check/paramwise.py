"""Check that every rule for learning rates and weight decay matches a parameter."""
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from .findings import Hint, finding, meant_by, tell
from .keys import class_of


def check_paramwise(cfg, model):
    """Check that every rule for learning rates and weight decay matches a parameter of the model.

    Recipes have rules for parts that other models lack: a rule without a match is logged, and it is an error only if
    its key is misspelt. Frozen parameters count as matches, so that freezing more makes no rule wrong.

    Args:
        cfg: The config; its ``optim_wrapper.paramwise_cfg`` is checked.
        model: The built model, wrapped for a distributed run or not.

    Raises:
        ConfigError: It lists the keys of ``custom_keys`` that match no parameter and are nearly the name of one. With
            ``config_findings = 'warn'`` in the config they are only logged.
    """
    wrapper = cfg.get('optim_wrapper') or {}
    rules = wrapper.get('paramwise_cfg') if isinstance(wrapper, dict) else None
    constructor = wrapper.get('constructor', 'DefaultOptimWrapperConstructor') if rules else None
    if isinstance(constructor, str):
        constructor = class_of(constructor, OPTIM_WRAPPER_CONSTRUCTORS, cfg.get('default_scope'))
    if getattr(constructor, 'add_params', None) is not DefaultOptimWrapperConstructor.add_params:
        return  # others have their own rules
    path = 'optim_wrapper.paramwise_cfg'
    model = getattr(model, 'module', model)
    parameters = [(f'{prefix}.{name}', module, parameter) for prefix, module in model.named_modules()
                  for name, parameter in module.named_parameters(recurse=False)]
    custom = rules.get('custom_keys') or {}
    findings, words = [], {word for name, *_ in parameters for word in name.split('.')}
    for key, value in custom.items():
        if not any(key in name for name, *_ in parameters):
            wrong, meant = _find_misspelt(key, words)
            line = finding(f'{path}.custom_keys.{key}', value, 'no parameter of the model has this in its name', wrong,
                           [meant] if meant else ())
            findings.append(line if meant else Hint(line))
    others = [part for part in parameters if not any(key in part[0] for key in custom)]
    for key, applies in RULES.items():
        if rules.get(key) is not None and not any(applies(*part) for part in others):
            findings.append(Hint(finding(f'{path}.{key}', rules[key], 'it has no effect: no parameter outside of '
                                         'custom_keys is of this kind')))
    tell(findings, cfg.get('config_findings', 'stop'))


def _find_misspelt(key, words):
    """Return the misspelt part of a dotted key, and the part of a parameter's name that was meant."""
    wrong = [part for part in key.split('.') if not any(part in word for word in words)]
    return next(((part, meant) for part in wrong if (meant := meant_by(part, words))), (None, None))


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
