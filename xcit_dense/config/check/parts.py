"""Compare the keys of all parts of a config, nested ones too, with the signatures of their classes."""
from mmengine import registry as R
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings
from mmengine.utils.dl_utils import set_multi_processing
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader

from ..._utils.text import nearest, type_name
from ...data.datasets import LOADERS
from .keys import Hint, arguments_of, check_keys, check_names, class_of, dicts_by_key, finding, is_known, meant_by, tell
from .schedule import schedulers

_DEFAULT_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
#: Keys that are allowed in addition to the arguments of the class.
_BESIDE = {R.HOOKS: ['priority'], R.OPTIM_WRAPPERS: ['constructor', 'paramwise_cfg'],
           R.WEIGHT_INITIALIZERS: ['override'], R.MODELS: ['requires_grad']}
#: Registry of what is under a key, by the registry of the dict that has the key.
_CHILDREN = {
    R.DATASETS: {'dataset': R.DATASETS, 'datasets': R.DATASETS, 'pipeline': R.TRANSFORMS},
    R.EVALUATOR: {'metrics': R.METRICS}, R.VISUALIZERS: {'vis_backends': R.VISBACKENDS},
    R.OPTIM_WRAPPERS: {'optimizer': R.OPTIMIZERS}, R.TRANSFORMS: {'transforms': R.TRANSFORMS}}
#: Keys of a model's parts whose types are in no registry of models, or which are read before a layer is built.
_OPS = {'nms', 'roi_layer', 'upsample_cfg', 'init_cfg'}
#: Transforms that hold those of another package.
_OF_OTHERS = ('Albu', )
#: Well-known keys at any depth of a model's train_cfg and test_cfg, and of a data set's filter_cfg.
_SETTINGS = (
    'allowed_border', 'assigner', 'bbox_min_size', 'class_agnostic', 'crop_size', 'filter_empty_gt', 'ga_assigner',
    'ga_sampler', 'iou_thr', 'iou_threshold', 'iou_topk', 'mask_thr', 'mask_thr_binary', 'max_per_image', 'max_per_img',
    'min_bbox_size', 'min_size', 'nms_post', 'nms_pre', 'pos_weight', 'rcnn', 'reg_assigner', 'rpn', 'rpn_proposal',
    'sampler', 'score_thr', 'score_threshold', 'split_thr', 'stride', 'initial_assigner')
#: Keys of a rule for all parameters of a kind, which mmengine's constructor of optimizers reads.
_RULES = ('bias_lr_mult', 'bias_decay_mult', 'norm_decay_mult', 'dwconv_decay_mult', 'flat_decay_mult',
          'dcn_offset_lr_mult', 'custom_keys', 'bypass_duplicate')


def check_parts(cfg) -> list:
    """Return the findings of everything but the model; the default scope must be the config's."""
    lines = [line for name in LOADERS for line in _check_loader(cfg.get(name), name)]
    for name in ('train_cfg', 'val_cfg', 'test_cfg'):
        lines += _check_loop(cfg.get(name), name)
    lines += _check_optim_wrapper(cfg)
    lines += _check_schedulers(cfg)
    for name in ('val_evaluator', 'test_evaluator'):
        part = cfg.get(name)
        several = isinstance(part, dict) and 'metrics' in part
        lines += visit({'type': 'Evaluator', **part} if several else part, name, R.EVALUATOR if several else R.METRICS)
    lines += _check_hooks(cfg)
    lines += visit(cfg.get('visualizer'), 'visualizer', R.VISUALIZERS)
    for name, registry, kind in (('log_processor', R.LOG_PROCESSORS, 'LogProcessor'),
                                 ('model_wrapper_cfg', R.MODEL_WRAPPERS, 'MMDistributedDataParallel')):
        lines += visit({'type': kind, **(cfg.get(name) or {})}, name, registry)
    return lines + _check_plain_dicts(cfg)


def check_settings(node, path) -> list:
    """Return a finding for each key that is nearly a well-known one, in dicts without a type and in those of nms."""
    if isinstance(node, (list, tuple)):
        return [line for i, part in enumerate(node) for line in check_settings(part, f'{path}.{i}')]
    if not isinstance(node, dict) or 'type' in node and not path.endswith('.nms'):
        return []
    lines = check_names(node, path, _SETTINGS, path.rpartition('.')[2], 'passed on')
    return lines + [line for key, value in node.items() for line in check_settings(value, f'{path}.{key}')]


def visit(node, path, registry, known=True):
    """Return the findings of a dict with a type and of those inside, or of each in a list.

    Args:
        node: The dict or list; anything else has no finding.
        path: Its place in the config.
        registry: mmengine's registry for it; the default scope must be that of the run.
        known: The class of the part around it is known; others may do anything with a type that is not registered.
    """
    if isinstance(node, (list, tuple)):
        return [line for i, part in enumerate(node) for line in visit(part, f'{path}.{i}', registry, known)]
    if not isinstance(node, dict) or 'type' not in node and registry is not R.MODELS:
        return []
    lines = []
    if 'type' in node:
        roots = [registry, R.TASK_UTILS] if registry is R.MODELS else [registry]
        kind = next(filter(None, (class_of(node['type'], root, node.get('_scope_')) for root in roots)), None)
        if kind is None:
            return _unknown_type(f'{path}.type', node['type'], roots) if known else []
        lines, known = check_keys(node, path, kind, _BESIDE.get(registry, ())), is_known(kind)
        if registry is R.DATASETS and known:  # others may read their own names
            lines += check_settings(node.get('filter_cfg'), f'{path}.filter_cfg') + _check_metainfo(node, path)
        if type_name(node['type']) in _OF_OTHERS:
            return lines
    inside = _CHILDREN.get(registry, {}) if registry is not R.MODELS else dict.fromkeys(node.keys() - _OPS, registry)
    return lines + [line for key, part in node.items() if key in inside
                    for line in visit(part, f'{path}.{key}', inside[key], known)]


def check_init(node, path) -> list:
    """Return the findings of every ``init_cfg`` in a model, which its constructors only store."""
    return [line for key, part in dicts_by_key(node, path)
            for line in visit(part.get('init_cfg'), f'{key}.init_cfg', R.WEIGHT_INITIALIZERS)]


def _unknown_type(path, name, roots):
    """Return the finding of a type that is in none of some registries.

    The parts of a model may be from anywhere: there it is one only if it is nearly a name, else building it says so.
    """
    names, name = {known for root in roots for known in _names_in(root)}, str(name)
    if roots[0] is R.MODELS and not nearest(name.rpartition('.')[2], names):
        return []
    return [finding(path, name, f'there is no such {roots[0].name}; your own type must be registered by a module in '
                    'custom_imports', name.rpartition('.')[2], names)]


def _names_in(registry):
    """Return the names in the registry of the default scope and in those above it."""
    names = set()
    with registry.switch_scope_and_registry(None) as inner:
        while inner is not None:
            names |= set(inner.module_dict)
            inner = inner.parent
    return names


def _check_metainfo(node, path):
    metainfo = node.get('metainfo')
    names = ('classes', 'palette')
    return [finding(f'{path}.metainfo.{key}', value, 'nothing reads it', key.lower(), names)
            for key, value in (metainfo.items() if isinstance(metainfo, dict) else ())
            if key not in names and meant_by(key.lower(), names)]


def _check_loader(node, path):
    if not isinstance(node, dict):
        return []
    lines = check_keys(node, path, DataLoader, {'num_batch_per_epoch', 'disable_subprocess_warning'})
    for name, registry in (('dataset', R.DATASETS), ('sampler', R.DATA_SAMPLERS), ('batch_sampler', R.DATA_SAMPLERS),
                           ('collate_fn', R.FUNCTIONS), ('worker_init_fn', R.FUNCTIONS)):
        lines += visit(node.get(name), f'{path}.{name}', registry)
    return lines


def _check_loop(node, path):
    if not isinstance(node, dict):
        return []
    kind = dict(val_cfg='ValLoop', test_cfg='TestLoop').get(path)
    if path == 'train_cfg' and 'type' not in node:
        if 'by_epoch' not in node:
            return [finding(path, node, "it has no type, such as 'EpochBasedTrainLoop' or 'IterBasedTrainLoop'")]
        kind = 'EpochBasedTrainLoop' if node['by_epoch'] else 'IterBasedTrainLoop'
        node = {key: value for key, value in node.items() if key != 'by_epoch'}
    elif path == 'train_cfg' and 'by_epoch' in node:
        return [finding(f'{path}.by_epoch', node['by_epoch'], f'{path}.type = {node["type"]!r} decides that already; '
                        'remove one of the two')]
    return visit({'type': kind, **node}, path, R.LOOPS)


def _check_optim_wrapper(cfg):
    node, path = cfg.get('optim_wrapper'), 'optim_wrapper'
    if not isinstance(node, dict) or 'optimizer' not in node:
        return []  # a user-defined constructor may read anything
    lines = visit({'type': 'OptimWrapper', **node}, path, R.OPTIM_WRAPPERS)
    kind = class_of(node.get('type', 'OptimWrapper'), R.OPTIM_WRAPPERS)
    clip = node.get('clip_grad') or {}
    clips = dict(norm=clip_grad_norm_, value=clip_grad_value_).get(clip.get('type', 'norm'))
    lines += check_keys(clip, f'{path}.clip_grad', clips) if clips and kind and is_known(kind) else []
    constructor = node.get('constructor', 'DefaultOptimWrapperConstructor')
    kind, rules = class_of(constructor, R.OPTIM_WRAPPER_CONSTRUCTORS), node.get('paramwise_cfg') or {}
    if kind is None:
        lines += _unknown_type(f'{path}.constructor', constructor, [R.OPTIM_WRAPPER_CONSTRUCTORS])
    elif getattr(kind, 'add_params', None) is DefaultOptimWrapperConstructor.add_params and is_known(kind):
        lines += check_names(rules, f'{path}.paramwise_cfg', {*_RULES, *getattr(kind, 'own_rules', ())}, kind.__name__)
        optimizer = class_of(node['optimizer'].get('type'), R.OPTIMIZERS)
        options, rest = arguments_of(optimizer) if optimizer else ((), 'unknown')
        for key, rule in (rules.get('custom_keys') or {}).items() if rest == 'rejected' else ():
            # other keys than the factors become options of the optimizer for these parameters
            lines += check_names(rule, f'{path}.paramwise_cfg.custom_keys.{key}',
                                 {*options, 'lr_mult', 'decay_mult'}, 'the optimizer', 'ignored')
    return lines


def _check_schedulers(cfg):
    lines = []
    for path, node in schedulers(cfg.get('param_scheduler'), 'param_scheduler'):
        kind = class_of(node['type'], R.PARAM_SCHEDULERS)
        if kind is None:
            lines += _unknown_type(f'{path}.type', node['type'], [R.PARAM_SCHEDULERS])
        elif is_known(kind):  # what these pass on, their bases reject
            lines += check_names(node, path, arguments_of(kind)[0] | {'convert_to_iter_based'}, kind.__name__)
    return lines


def _check_hooks(cfg):
    lines = visit(cfg.get('custom_hooks'), 'custom_hooks', R.HOOKS)
    for name, hook in (cfg.get('default_hooks') or {}).items():
        path = f'default_hooks.{name}'
        if name not in _DEFAULT_HOOKS and meant_by(name, _DEFAULT_HOOKS):
            lines.append(finding(path, hook, 'no default hook has this name', name, _DEFAULT_HOOKS))
        elif hook is None and name not in _DEFAULT_HOOKS:
            lines.append(finding(path, hook, f'only {", ".join(_DEFAULT_HOOKS)} can be None'))
        elif isinstance(hook, dict) and 'type' not in hook:
            lines.append(finding(path, hook, 'it has no type'))
        else:
            lines += visit(hook, path, R.HOOKS)
    return lines


def _check_plain_dicts(cfg):
    env, lines = cfg.get('env_cfg') or {}, []
    for node, path, names, others in (
            (env, 'env_cfg', {'cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'}, 'ignored'),
            (env.get('mp_cfg'), 'env_cfg.mp_cfg', arguments_of(set_multi_processing)[0] - {'distributed'}, 'rejected'),
            (cfg.get('randomness'), 'randomness', arguments_of(Runner.set_randomness)[0], 'rejected'),
            (cfg.get('auto_scale_lr'), 'auto_scale_lr', {'enable', 'base_batch_size'}, 'ignored'),
            (cfg.get('custom_imports'), 'custom_imports', arguments_of(import_modules_from_strings)[0], 'rejected')):
        lines += check_names(node, path, names, path.partition('.')[0], others)
    return lines


def check_paramwise(cfg, model):
    """Check that every key of ``custom_keys``, for learning rates and weight decay, matches a parameter of the model.

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
        constructor = class_of(constructor, R.OPTIM_WRAPPER_CONSTRUCTORS, cfg.get('default_scope'))
    if getattr(constructor, 'add_params', None) is not DefaultOptimWrapperConstructor.add_params:
        return  # others have their own rules
    # with a dot in front, as mmengine has it
    names = [f'.{name}' for name, _ in getattr(model, 'module', model).named_parameters()]
    findings, words = [], {word for name in names for word in name.split('.')}
    for key, value in (rules.get('custom_keys') or {}).items():
        if not any(key in name for name in names):
            wrong, meant = _find_misspelt(key, words)
            line = finding(f'optim_wrapper.paramwise_cfg.custom_keys.{key}', value, 'no parameter of the model has '
                           'this in its name', wrong, [meant] if meant else ())
            findings.append(line if meant else Hint(line))
    tell(findings, cfg.get('config_findings', 'stop'))


def _find_misspelt(key, words):
    """Return the misspelt part of a dotted key, and the part of a parameter's name that was meant."""
    wrong = [part for part in key.split('.') if not any(part in word for word in words)]
    return next(((part, meant) for part in wrong if (meant := meant_by(part, words))), (None, None))
