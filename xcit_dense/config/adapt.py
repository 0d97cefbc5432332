"""XCiT in the place of another backbone: the lines to change in a config of mmdet or mmsegmentation."""
import importlib.util
import pkgutil
import warnings
from contextlib import contextmanager
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from yapf.yapflib.yapf_api import FormatCode

from .._utils.text import first_line, listed, type_name
from ..archs import arch_names, get_arch
from ..errors import ConfigError
from ..models.pyramid import PYRAMID_STRIDES
from .loading import load_config, read_config
from .options import drop_pretrained

#: The authors' recipes, by the default scope of a config: rates, decay, stochastic depth, weights, normalisation.
_RECIPES = dict(mmdet='maskrcnn_xcit_{}_coco', mmseg='semfpn_xcit_{}_ade20k')
_SAMPLES = dict(mmdet='mmdet.structures:DetDataSample', mmseg='mmseg.structures:SegDataSample')
_SIDE = 256


def adapt(config, arch: str = 'small_12_p16') -> str:
    """Return a config, as text, that trains the model of another config with XCiT as its backbone.

    The maps keep their strides where XCiT has them, and what takes them gets their channels. Images are normalised as
    for XCiT's weights. A config with SGD gets AdamW with the authors' rates, others keep their own. All else is that of
    the config.

    Args:
        config: The file of a config; ``mmdet::NAME`` or ``mmseg::NAME`` for a stock config.
        arch: A name of `xcit_dense.archs.arch_names`.

    Raises:
        ConfigError: There is no such config or arch, or XCiT cannot take the place of the model's backbone.
    """
    if arch not in arch_names():
        raise ConfigError(f'arch must be one of {", ".join(arch_names())}; got {arch!r}')
    size, (base, path) = get_arch(arch), _find(str(config))
    cfg = load_config(path, pretrained=False, findings='warn')
    scope, model = cfg.get('default_scope'), cfg.get('model') or {}
    if scope not in _RECIPES:
        raise ConfigError(f'{config}: default_scope must be one of {", ".join(_RECIPES)}, got {scope!r}')
    if not isinstance(model.get('backbone'), dict):
        raise ConfigError(f'{config}: {type_name(model.get("type"))} has no backbone that XCiT could replace')
    init_default_scope(scope)
    family, depth, patch = arch.split('_')
    recipe = read_config(_RECIPES[scope].format(f'{family[0]}{depth}_{patch}'))
    channels, strides = _levels(model.backbone, config)
    fit = sorted({*strides} & {*PYRAMID_STRIDES}) == strides
    backbone = dict(recipe.model.backbone, _delete_=True, out_indices=size.out_indices[-len(strides):],
                    out_strides=tuple(strides) if fit else None)
    changes = dict(backbone=backbone, **{key: None for key in ('pretrained', ) if model.get(key)})
    for key in ['neck'] if model.get('neck') else [key for key in model if key.endswith('head')]:
        if changed := _channels_of(model[key], channels, size.embed_dims):
            changes[key] = changed
    own, wanted = model.get('data_preprocessor') or {}, recipe.model.data_preprocessor
    images = {key: wanted[key] for key in ('mean', 'std', 'bgr_to_rgb')}
    if any(own.get(key) != value for key, value in images.items()):
        changes['data_preprocessor'] = dict(images, **{key: False for key in ('rgb_to_bgr', ) if own.get(key)})
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    batch = (cfg.get('auto_scale_lr') or {}).get('base_batch_size') or recipe.auto_scale_lr.base_batch_size
    changes = dict(_base_=base, custom_imports=dict(
        imports=['xcit_dense', *([imports] if isinstance(imports, str) else imports)], allow_failed_imports=False),
        model=changes)
    names = _try(_text(changes), scope, config)
    maps = f'with strides {listed(map(str, strides))}' if fit else (
        f'token maps of stride {size.patch_size} (strides {listed(map(str, strides))} of the '
        f'{type_name(model.backbone.type)} are none of its pyramid)')
    return (f'# XCiT {arch} in {base}: {maps}.\n# Learning rates are for {batch} images a step.\n'
            + _text(dict(changes, **_schedule(cfg, recipe, batch, names, size.depth))))


def _find(config):
    """Return what a config that builds on this one names as its base, and the file."""
    package, colons, name = config.partition('::')
    if not colons:
        return str(Path(config).absolute()), config
    spec = importlib.util.find_spec(package)
    path = Path(spec.origin).parent / '.mim/configs' / name if spec else None
    if not (path and path.is_file()):
        raise ConfigError(f'there is no config {name} in the installed {package}')
    return config, path


@contextmanager
def _quiet():
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        yield


def _levels(backbone, config):
    """Return channels and strides of the maps that a backbone returns."""
    try:
        module = MODELS.build(backbone)
        module.eval()  # returns nothing in some of mmdet's backbones
        with _quiet():
            maps = module(torch.zeros(1, backbone.get('in_channels', 3), _SIDE, _SIDE))
    except Exception as error:  # of any type, as it may be a user's
        raise ConfigError(f'{config}: its backbone does not run: {type(error).__name__}: {error}') from error
    maps = maps if isinstance(maps, (list, tuple)) else [maps]
    if not all(isinstance(one, torch.Tensor) and one.ndim == 4 for one in maps):
        raise ConfigError(f'{config}: {type_name(backbone.type)} returns more than maps, so XCiT cannot replace it')
    return [one.shape[1] for one in maps], [round(_SIDE / one.shape[3]) for one in maps]


def _channels_of(part, channels, width, is_first=True):
    """Return what changes in a part, so that it takes maps of ``width`` channels in the place of ``channels``."""
    if isinstance(part, (list, tuple)):
        parts = [dict(one, **_channels_of(one, channels, width)) if isinstance(one, dict) else one for one in part]
        return parts if parts != [*part] else {}
    changed = {}
    for key, value in (part or {}).items():
        if isinstance(value, dict):  # a head within a head
            value = _channels_of(value, channels, width, is_first=False)
        elif key not in ('in_channels', 'c1_in_channels'):
            continue
        elif isinstance(value, (list, tuple)):
            value = [width] * len(value) if {*value} <= {*channels} else None
        else:
            value = width if value in channels and (is_first or 'in_index' in part) else None
        if value:
            changed[key] = value
    return changed


def _schedule(cfg, recipe, batch, names, depth):
    """Return optimizer and schedulers, with AdamW of the config or else of the recipe; XCiT's norms do not decay."""
    old, given = cfg.optim_wrapper, cfg.optim_wrapper.get('paramwise_cfg') or {}
    new = {key: old[key] for key in ('type', 'clip_grad', 'accumulative_counts', 'loss_scale') if old.get(key)}
    if 'Adam' in type_name(old.optimizer.type):
        factors = {key: value for key, value in given.items() if key.endswith('_mult')}
        keys = {key: value for key, value in (given.get('custom_keys') or {}).items()
                if any(str(key) in name for name in names)}  # others were of the old backbone
        optimizer = old.optimizer
    else:
        ours, factors, keys = recipe.optim_wrapper.optimizer, {}, {}
        optimizer = dict(ours, lr=ours.lr * batch / recipe.auto_scale_lr.base_batch_size)
    if 'backbone' in keys:  # the longest key counts
        norms = _code(dict(keys['backbone'], decay_mult=0.))
        code = _code({str(key): value for key, value in keys.items()}, literal=True)[:-1]
        keys = _Code(f"{code}, **{{f'backbone.blocks.{{i}}.norm': {norms} for i in range({depth})}}}}")
    else:
        keys['norm'] = dict(decay_mult=0.)
    new = dict(optim_wrapper=dict(_delete_=True, **new, optimizer=optimizer,
                                  paramwise_cfg=dict(factors, custom_keys=keys)))
    steps, ratio = cfg.get('param_scheduler') or [], optimizer['lr'] / old.optimizer.lr
    steps = [steps] if isinstance(steps, dict) else steps
    if ratio != 1 and any(step.get('eta_min') for step in steps):  # the least rate is no factor
        new['param_scheduler'] = [dict(step, **{key: step[key] * ratio for key in ('eta_min', ) if key in step})
                                  for step in steps]
    return new


def _try(text, scope, config):
    """Build the model of a config and let it predict once; return the names of its parameters."""
    cfg = Config.fromstring(text, '.py')
    drop_pretrained(cfg.model)
    try:
        init_default_scope(scope)
        model = MODELS.build(cfg.model)
        model.eval()
        size = (_SIDE, _SIDE)
        sample = pkgutil.resolve_name(_SAMPLES[scope])(metainfo=dict(
            img_shape=size, ori_shape=size, pad_shape=size, scale_factor=(1., 1.), batch_input_shape=size))
        with _quiet():
            model.test_step(dict(inputs=[torch.zeros(3, *size, dtype=torch.uint8)], data_samples=[sample]))
    except Exception as error:  # of any type, as parts may be a user's
        raise ConfigError(f'{config}: with XCiT as its backbone the model does not run: {type(error).__name__}: '
                          f'{first_line(str(error))}') from error
    return [name for name, _ in model.named_parameters()]


def _text(values):
    text = ''.join(f'{key} = {_code(value)}\n' for key, value in values.items())
    return FormatCode(text, style_config='{based_on_style: pep8, column_limit: 110}')[0]


class _Code(str):
    """What is written as it is."""


def _code(value, literal=False):
    """Return a value as it is written in a config, dicts as calls of ``dict`` or with braces."""
    if isinstance(value, _Code):
        return value
    if isinstance(value, dict) and (literal or not all(str(key).isidentifier() for key in value)):
        return f'{{{", ".join(f"{key!r}: {_code(one)}" for key, one in value.items())}}}'
    if isinstance(value, dict):
        return f'dict({", ".join(f"{key}={_code(one)}" for key, one in value.items())})'
    if isinstance(value, (list, tuple)):
        inside = ', '.join(map(_code, value))
        return f'[{inside}]' if isinstance(value, list) else f'({inside}{"," * (len(value) == 1)})'
    return f'{value:.12g}' if isinstance(value, float) else repr(value)
