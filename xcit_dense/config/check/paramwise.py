"""Rules for learning rates and weight decay: does each one reach a parameter?"""
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS
from torch import nn

from .findings import finding, tell
from .keys import class_of


def check_paramwise(cfg, model):
    """Check that every rule for learning rates and weight decay reaches a parameter of the model.

    Args:
        cfg: The config; its ``optim_wrapper.paramwise_cfg`` is looked at.
        model: The built model, wrapped for a distributed run or not.

    Raises:
        ConfigError: It lists every key of ``custom_keys``, and every ``*_mult``, that changes no parameter; with
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
    for key, applies in RULES.items():
        if rules.get(key) is not None and not any(applies(*part) for part in others):
            findings.append(finding(f'{path}.{key}', rules[key], 'no trained parameter of the model is of this kind '
                                     'and outside of custom_keys'))
    tell(findings, cfg.get('config_findings', 'stop'))


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
