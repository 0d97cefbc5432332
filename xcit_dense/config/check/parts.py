"""Compare the keys of all parts of a config, nested ones too, with the signatures of their classes."""
from mmengine import registry as R
from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.runner import Runner
from mmengine.utils.dl_utils import set_multi_processing
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader

from ..._utils.text import nearest, type_name
from ...data.datasets import LOADERS
from ...tasks import class_of
from .keys import Hint, arguments_of, check_keys, check_names, finding, is_known, meant_by, tell

_DEFAULT_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
#: Keys that are allowed in addition to the arguments of the class.
_BESIDE = {R.HOOKS: ['priority'], R.OPTIM_WRAPPERS: ['constructor', 'paramwise_cfg'],
           R.PARAM_SCHEDULERS: ['convert_to_iter_based'], R.WEIGHT_INITIALIZERS: ['override'],
           R.MODELS: ['requires_grad']}
_STRICT = (R.LOOPS, R.PARAM_SCHEDULERS)
#: Registry and default type of parts, by path.
_PARTS = {'val_cfg': (R.LOOPS, 'ValLoop'), 'test_cfg': (R.LOOPS, 'TestLoop'),
          'param_scheduler': (R.PARAM_SCHEDULERS, None), 'custom_hooks': (R.HOOKS, None),
          'visualizer': (R.VISUALIZERS, None), 'log_processor': (R.LOG_PROCESSORS, 'LogProcessor'),
          'model_wrapper_cfg': (R.MODEL_WRAPPERS, 'MMDistributedDataParallel')}
_OF_LOADERS = {'dataset': R.DATASETS, 'sampler': R.DATA_SAMPLERS, 'batch_sampler': R.DATA_SAMPLERS,
               'collate_fn': R.FUNCTIONS, 'worker_init_fn': R.FUNCTIONS}
#: Registry of what is under a key, by the registry of the dict that has the key.
_CHILDREN = {
    R.DATASETS: {'dataset': R.DATASETS, 'datasets': R.DATASETS, 'pipeline': R.TRANSFORMS},
    R.EVALUATOR: {'metrics': R.METRICS}, R.VISUALIZERS: {'vis_backends': R.VISBACKENDS},
    R.OPTIM_WRAPPERS: {'optimizer': R.OPTIMIZERS}, R.TRANSFORMS: {'transforms': R.TRANSFORMS}}
#: Keys of a model's parts whose types are in no registry of models, or which are read before a layer is built.
_OPS = {'nms', 'roi_layer', 'upsample_cfg'}
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
    lines = _check_train_loop(cfg.get('train_cfg')) + _check_optim_wrapper(cfg) + _check_plain_dicts(cfg)
    for path in LOADERS:
        loader = cfg.get(path) or {}
        lines += check_keys(loader, path, DataLoader, {'num_batch_per_epoch', 'disable_subprocess_warning'})
        for name, registry in _OF_LOADERS.items():
            lines += visit(loader.get(name), f'{path}.{name}', registry)
    for path in ('val_evaluator', 'test_evaluator'):
        several = 'metrics' in (cfg.get(path) or ())
        lines += _visit_default(cfg, path, *((R.EVALUATOR, 'Evaluator') if several else (R.METRICS, None)))
    for path, (registry, kind) in _PARTS.items():
        lines += _visit_default(cfg, path, registry, kind)
    hooks, path = cfg.get('default_hooks') or {}, 'default_hooks'
    lines += check_names(hooks, path, _DEFAULT_HOOKS, 'the runner', 'passed on')
    lines += [finding(f'{path}.{name}', hook, f'only {", ".join(_DEFAULT_HOOKS)} can be None')
              for name, hook in hooks.items() if hook is None and name not in _DEFAULT_HOOKS]
    return lines + [line for name, hook in hooks.items() for line in visit(hook, f'{path}.{name}', R.HOOKS)]


def _visit_default(cfg, path, registry, kind):
    node = cfg.get(path)
    return visit({'type': kind, **node} if kind and isinstance(node, dict) else node, path, registry)


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
        lines, known = check_keys(node, path, kind, _BESIDE.get(registry, ()), registry in _STRICT), is_known(kind)
        if registry is R.DATASETS and known:  # others may read their own names
            lines += check_settings(node.get('filter_cfg'), f'{path}.filter_cfg') + _check_metainfo(node, path)
        if type_name(node['type']) in _OF_OTHERS:
            return lines
    inside = _CHILDREN.get(registry, {}) if registry is not R.MODELS else {
        **dict.fromkeys(node.keys() - _OPS, registry), 'init_cfg': R.WEIGHT_INITIALIZERS}
    return lines + [line for key, part in node.items() if key in inside
                    for line in visit(part, f'{path}.{key}', inside[key], known)]


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


def _check_train_loop(node):
    if isinstance(node, dict) and 'type' not in node:
        if 'by_epoch' not in node:
            return [finding('train_cfg', node, "it has no type, such as 'EpochBasedTrainLoop' or 'IterBasedTrainLoop'")]
        node = {**node, 'type': 'EpochBasedTrainLoop' if node['by_epoch'] else 'IterBasedTrainLoop'}
        del node['by_epoch']
    return visit(node, 'train_cfg', R.LOOPS)


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
        options, closed = arguments_of(optimizer) if optimizer else ((), False)
        for key, rule in (rules.get('custom_keys') or {}).items() if closed else ():
            # other keys than the factors become options of the optimizer for these parameters
            lines += check_names(rule, f'{path}.paramwise_cfg.custom_keys.{key}',
                                 {*options, 'lr_mult', 'decay_mult'}, 'the optimizer', 'ignored')
    return lines


def _check_plain_dicts(cfg):
    env, lines = cfg.get('env_cfg') or {}, []
    for node, path, names, others in (
            (env, 'env_cfg', {'cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'}, 'ignored'),
            (env.get('mp_cfg'), 'env_cfg.mp_cfg', arguments_of(set_multi_processing)[0] - {'distributed'}, 'rejected'),
            (cfg.get('randomness'), 'randomness', arguments_of(Runner.set_randomness)[0], 'rejected'),
            (cfg.get('auto_scale_lr'), 'auto_scale_lr', {'enable', 'base_batch_size'}, 'ignored')):
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
