"""XCiT in the place of another backbone: the lines to change in a config of mmdet or mmsegmentation."""
import pkgutil
import traceback
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.logging import MessageHub
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData, PixelData
from yapf.yapflib.yapf_api import FormatCode

from .._utils.text import first_line, listed, type_name
from ..archs import arch_names, get_arch
from ..compat.masks import cut_masks
from ..errors import ConfigError
from ..models.pyramid import PYRAMID_STRIDES
from .check import warms_up
from .check.trial import unnoticed
from .loading import base_name, find_stock_config, load_config, read_config
from .options import drop_pretrained

#: The authors' recipes, by the default scope of a config: rates, decay, stochastic depth, weights, normalisation.
_RECIPES = dict(mmdet='maskrcnn_xcit_{}_coco', mmseg='semfpn_xcit_{}_ade20k')
_SAMPLES = dict(mmdet='mmdet.structures:DetDataSample', mmseg='mmseg.structures:SegDataSample')
_SIDE = 256
#: Packages whose classes say nothing of where a model fails.
_LAYERS = 'builtins', 'torch', 'mmcv', 'mmengine'
#: Keys for the norms of XCiT's blocks, longer than ``backbone``.
_NORMS = tuple(f'norm{number}.{part}' for number in (1, 2, 3) for part in ('weight', 'bias'))


def adapt(config, arch: str = 'small_12_p16', out=None) -> str:
    """Return a config, as text, that trains the model of another config with XCiT as its backbone.

    The maps keep their strides where XCiT has them, and what takes them gets their channels. Images are normalised as
    for XCiT's weights. Another optimizer than Adam becomes AdamW with the authors' rates and warm-up. All else is that
    of the config. The model predicts two blank images and trains for a step with them.

    Args:
        config: A config as `load_config` takes it; ``mmdet::NAME`` or ``mmseg::NAME`` for a stock config.
        out: The file for the text, from whose folder the path of a base starts. Default: the path is absolute.

    `ConfigError` if there is no such config or arch, or XCiT cannot take the place of the model's backbone.
    """
    if arch not in arch_names():
        raise ConfigError(f'there is no arch {arch}: choose one of {", ".join(arch_names())}')
    size, config = get_arch(arch), str(config)
    cfg = load_config(find_stock_config(config) if '::' in config else config, pretrained=False, findings='warn')
    scope, model = cfg.get('default_scope'), cfg.get('model') or {}
    if scope not in _RECIPES:
        raise ConfigError(f'{config}: default_scope must be one of {", ".join(_RECIPES)}, got {scope!r}')
    if not isinstance(model.get('backbone'), dict):
        raise ConfigError(f'{config}: {type_name(model.get("type"))} has no model.backbone that XCiT could replace'
                          + (': adapt the config of its detector' if 'detector' in model else ''))
    if (model.get('roi_head') or {}).get('shared_head'):
        raise ConfigError(f'{config}: roi_head.shared_head runs the last stage of a ResNet on each region (C4), which '
                          'XCiT does not have: adapt a config with a neck, such as FPN')
    init_default_scope(scope)
    family, depth, patch = arch.split('_')
    recipe = read_config(_RECIPES[scope].format(f'{family[0]}{depth}_{patch}'))
    if second := next((key for key in model.get('neck') or () if 'backbone' in key), None):
        raise ConfigError(f'{config}: model.neck.{second} is a second backbone, for the maps of the first. XCiT '
                          f'accepts only images: adapt a config with FPN instead of {type_name(model.neck.type)}')
    channels, strides = _levels(model.backbone, config)
    _check_last_map_counts(model, len(strides), config)
    told = listed(map(str, strides))
    if len(strides) > len(PYRAMID_STRIDES):
        raise ConfigError(f'{config}: {type_name(model.backbone.type)} returns {len(strides)} maps with strides {told}'
                          f', XCiT at most {len(PYRAMID_STRIDES)}: adapt a config of the same head for a ResNet')
    fit, inputs = sorted({*strides} & {*PYRAMID_STRIDES}) == strides, model.backbone.get('in_channels', 3)
    backbone = dict(recipe.model.backbone, _delete_=True, out_indices=size.out_indices[-len(strides):],
                    out_strides=tuple(strides) if fit else None, **dict(in_channels=inputs) if inputs != 3 else {})
    changes = dict(backbone=backbone, **{key: None for key in ('pretrained', ) if model.get(key)})
    takers = ['neck'] if model.get('neck') else []
    if not takers or 'embed_dim' in model.neck:  # Feature2Pyramid keeps the channels
        takers += [key for key in model if key.endswith('head')]
    for key in takers:
        if changed := _channels_of(model[key], channels, size.embed_dims, is_heads=key != 'neck'):
            changes[key] = changed
    own, wanted = model.get('data_preprocessor') or {}, recipe.model.data_preprocessor
    images = {key: wanted[key] for key in ('mean', 'std', 'bgr_to_rgb')}
    if inputs == 3 and any(own.get(key) != value for key, value in images.items()):
        changes['data_preprocessor'] = dict(images, **{key: False for key in ('rgb_to_bgr', ) if own.get(key)})
    imports = (cfg.get('custom_imports') or {}).get('imports') or []
    imports = ['xcit_dense', f'xcit_dense.for_{scope}', *([imports] if isinstance(imports, str) else imports)]
    imports = dict(imports=[*dict.fromkeys(imports)], allow_failed_imports=False)
    tried = dict(_base_=str(Path(cfg.filename).resolve()), custom_imports=imports, model=changes)
    names, problems = _try(tried, scope, inputs, config)
    if problems and 'auxiliary_head' not in changes:  # the neck may pass maps on, as JPU does
        head = _channels_of(model.get('auxiliary_head'), channels, size.embed_dims)
        again = _try(dict(tried, model=dict(changes, auxiliary_head=head)), scope, inputs, config) if head else (0, 1)
        if not again[1]:
            changes['auxiliary_head'], (names, problems) = head, again
    schedule, notes = _schedule(cfg, recipe, names)
    maps = f'with strides {told}' if fit else (
        f'all maps have the stride of the patch, {size.patch_size}, as its pyramid has no strides {told}')
    return ''.join(f'# {line}.\n' for line in (f'XCiT {arch} in {config}: {maps}', *notes, *problems)) + (
        _text(dict(_base_=base_name(config, out), custom_imports=imports, model=changes, **schedule)))


def _levels(backbone, config):
    """Return channels and strides of the maps that a backbone returns."""
    side = backbone.get('img_size') or _SIDE  # BEiT takes only one
    side = side if isinstance(side, int) else side[0]
    try:
        module = MODELS.build(backbone)
        module.eval()  # returns nothing in some of mmdet's backbones
        with unnoticed(), torch.no_grad():
            maps = module(torch.zeros(1, backbone.get('in_channels', 3), side, side))
    except Exception as error:  # of any type, as it may be a user's
        raise ConfigError(f'{config}: its backbone does not run: {type(error).__name__}: {error}') from error
    maps = maps if isinstance(maps, (list, tuple)) else [maps]
    if not all(isinstance(one, torch.Tensor) and one.ndim == 4 for one in maps):
        raise ConfigError(f'{config}: {type_name(backbone.type)} returns more than maps, so XCiT cannot replace it')
    return [one.shape[1] for one in maps], [round(side / one.shape[3]) for one in maps]


def _check_last_map_counts(model, levels, config):
    """Raise `ConfigError` if a segmentor does not predict from the last map, as with the two branches of BiSeNet."""
    heads = model.get('decode_head') or []
    indices = [head.get('in_index', -1) for head in (heads if isinstance(heads, (list, tuple)) else [heads])]
    used = [index for some in indices for index in (some if isinstance(some, (list, tuple)) else [some])]
    if used and not model.get('neck') and not {-1, levels - 1} & {*used}:
        raise ConfigError(f'{config}: the decode head predicts from map {listed(map(str, used))} of {levels}; in XCiT '
                          f'that is one of an early block. Set model.decode_head.in_index={levels - 1} in your own '
                          'config and adapt that')


def _channels_of(part, channels, width, is_first=True, is_heads=True):
    """Return what changes in a part, so that it takes maps of ``width`` channels in the place of ``channels``."""
    if isinstance(part, (list, tuple)):  # necks one after the other, or heads side by side
        parts = [dict(one, **_channels_of(one, channels, width)) if one is part[0] or is_heads else one for one in part]
        return parts if parts != [*part] else {}
    changed = {}
    for key, value in (part or {}).items():
        if isinstance(value, dict):  # a head within a head
            value = _channels_of(value, channels, width, is_first=False)
        elif key not in ('in_channels', 'c1_in_channels', 'embed_dim'):
            continue
        elif isinstance(value, (list, tuple)):
            value = type(value)([width] * len(value)) if {*value} <= {*channels} else None
        else:
            value = width if value in channels and (is_first or 'in_index' in part) else None
        if value:
            changed[key] = value
    if 'in_channels' in changed and part.get('num_convs') == 0:  # such a head predicts from the map itself
        changed['channels'] = changed['in_channels']
    return changed


def _schedule(cfg, recipe, names):
    """Return optimizer and schedulers, and what is to know of them. An Adam stays; norms of XCiT do not decay."""
    old, notes = cfg.optim_wrapper, []
    given, before = old.get('paramwise_cfg') or {}, cfg.get('param_scheduler') or []
    steps = before = [before] if isinstance(before, dict) else [*before]
    wrapper = {key: value for key, value in old.items() if key not in ('optimizer', 'paramwise_cfg', 'constructor')}
    factors = {key: value for key, value in given.items() if key.endswith('_mult') or key == 'bypass_duplicate'}
    keys = {key: value for key, value in (given.get('custom_keys') or {}).items()
            if any(str(key) in name for name in names)}  # others were of the old backbone
    if 'backbone' not in keys:
        keys['norm'] = dict(keys.get('norm') or {}, decay_mult=0.)
    elif all(name.startswith('backbone.') for name in names if name.endswith(_NORMS)):  # the longest key counts
        keys.update({norm: dict(keys['backbone'], decay_mult=0.) for norm in _NORMS})
    else:
        notes.append('Norms of XCiT decay, as a key for them would also be for norms of a head')
    if old.get('constructor'):
        notes.append(f'The constructor {type_name(old.constructor)}, with rates for the old backbone, is left out')
    if 'Adam' in type_name(old.optimizer.type):
        changes, optimizer = {}, old.optimizer
        notes.append('Learning rates are those of the base')
    else:
        ours, batch = recipe.optim_wrapper.optimizer, recipe.auto_scale_lr.base_batch_size
        images = (cfg.get('auto_scale_lr') or {}).get('base_batch_size')
        changes = {} if images else dict(auto_scale_lr=dict(enable=False, base_batch_size=batch))
        optimizer = dict(ours, lr=ours.lr * (images or batch) / batch)
        ratio = optimizer['lr'] / old.optimizer.lr  # the least rate is no factor
        steps = [dict(step, eta_min=step['eta_min'] * ratio) if step.get('eta_min') else step for step in steps]
        if not any(map(warms_up, steps)):
            steps = [recipe.param_scheduler[0], *steps]  # the authors' warm-up
        own = ''.join(f', {key} {value:g}' for key, value in factors.items() if 'lr_mult' in key)
        notes.append(f"Learning rates are the authors' for {images or batch} images a step{own}")
    if steps != before:
        changes['param_scheduler'] = steps
    return dict(changes, optim_wrapper=dict(wrapper, _delete_=True, optimizer=optimizer,
                                            paramwise_cfg=dict(factors, custom_keys=keys))), notes


def _try(changes, scope, inputs, config):
    """Build the model of a config, let it predict and train; return the names of its parameters and what failed.

    If a head cannot view maps whose channels are last, ``changes`` gets others.
    """
    cfg, problems = Config.fromstring(_text(changes), '.py'), []
    drop_pretrained(cfg.model)
    preprocessor = cfg.model.get('data_preprocessor') or {}
    preprocessor.pop('batch_augments', None)  # they enlarge, or need a runner
    size = (_SIDE, _SIDE) if 'num_queries' in cfg.model else (_SIDE // 2, _SIDE // 2)  # a query needs a token
    if 'size' in preprocessor:
        preprocessor.size = size
    MessageHub.get_current_instance().update_info_dict(dict(epoch=0, iter=0))  # some heads ask for them
    init_default_scope(scope)
    for trains in (False, True):
        try:
            with unnoticed(), torch.set_grad_enabled(trains):
                if not trains:
                    model = revert_sync_batchnorm(MODELS.build(cfg.model))
                    model.init_weights()  # some parameters are memory as it was found
                    cut_masks(model)  # mmdet cannot paste those of boxes outside the image, as weights may be random
                    batch = _batch(scope, inputs, size, proposes=getattr(model, 'with_rpn', True))
                model.train(trains)
                found = model(**model.data_preprocessor(batch, trains), mode='loss' if trains else 'predict')
                if trains:
                    model.parse_losses(found)[0].backward()
        except Exception as error:  # of any type, as parts may be a user's
            if 'view size is not compatible' in str(error) and 'channels_last' not in changes['model']['backbone']:
                changes['model']['backbone']['channels_last'] = False
                return _try(changes, scope, inputs, config)
            owners = [type(frame.f_locals.get('self')) for frame, _ in traceback.walk_tb(error.__traceback__)]
            owners = [kind.__name__ for kind in owners if kind.__module__.partition('.')[0] not in _LAYERS]
            words = first_line(error) if str(error) else f'at {traceback.extract_tb(error.__traceback__)[-1].line!r}'
            why = ': '.join([*owners[-1:], type(error).__name__, words])
            if not trains:
                raise ConfigError(f'{config}: with XCiT as its backbone the model does not run: {why}') from error
            problems = [f'A training step with two blank images failed, which real ones may not: {why}']
    return [name for name, _ in model.named_parameters()], problems


def _batch(scope, inputs, size, proposes):
    """Return two blank images, each with one object, or one label for all pixels."""
    samples, labels = [], torch.zeros(1, *size, dtype=torch.int64)
    for number in range(2):
        samples.append(pkgutil.resolve_name(_SAMPLES[scope])(metainfo=dict(
            img_id=number, img_shape=size, ori_shape=size, pad_shape=size, scale_factor=(1., 1.), flip=False,
            batch_input_shape=size, border=[0, size[0], 0, size[1]])))
        samples[-1].gt_sem_seg = PixelData(data=labels, sem_seg=labels)  # mmseg's name and mmdet's
        if scope == 'mmdet':
            from mmdet.structures.mask import BitmapMasks
            mask = np.zeros((1, *size), np.uint8)
            mask[:, 48:112, 16:96] = 1
            boxes, masks = torch.tensor([[16., 48., 96., 112.]]), BitmapMasks(mask, *size)
            samples[-1].gt_instances = InstanceData(bboxes=boxes, labels=labels[:, 0, 0], masks=masks)
            samples[-1].ignored_instances = InstanceData(bboxes=boxes[:0], labels=labels[:0, 0, 0])
            if not proposes:
                samples[-1].proposals = InstanceData(bboxes=boxes, scores=torch.ones(1))
    return dict(inputs=[torch.zeros(inputs, *size, dtype=torch.uint8)] * 2, data_samples=samples)


def _text(values):
    text = ''.join(f'{key} = {_code(value)}\n' for key, value in values.items())
    return FormatCode(text, style_config='{based_on_style: pep8, column_limit: 110}')[0]


def _code(value):
    """Return a value as it is written in a config, dicts as calls of ``dict`` where their keys are names."""
    if isinstance(value, dict) and not all(str(key).isidentifier() for key in value):
        return f'{{{", ".join(f"{key!r}: {_code(one)}" for key, one in value.items())}}}'
    if isinstance(value, dict):
        return f'dict({", ".join(f"{key}={_code(one)}" for key, one in value.items())})'
    if isinstance(value, (list, tuple)):
        inside = ', '.join(map(_code, value))
        return f'[{inside}]' if isinstance(value, list) else f'({inside}{"," * (len(value) == 1)})'
    return repr(float(f'{value:.12g}') if isinstance(value, float) else value)
