"""Compare the keys of all parts of a config, nested ones too, with the signatures of their classes."""
from mmengine import registry as R
from mmengine.optim import DefaultOptimWrapperConstructor
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader

from ..._utils.text import nearest, type_name
from ...data.datasets import LOADERS
from ..tasks import class_of
from .keys import Hint, arguments_of, check_keys, check_names, finding, is_known, meant_by, tell, value_at

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
#: The keys of dicts that belong to no class.
_PLAIN = {'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
          'env_cfg.mp_cfg': ('mp_start_method', 'opencv_num_threads'),
          'randomness': ('seed', 'diff_rank_seed', 'deterministic'), 'auto_scale_lr': ('enable', 'base_batch_size')}
_OF_LOADERS = {'dataset': R.DATASETS, 'sampler': R.DATA_SAMPLERS, 'batch_sampler': R.DATA_SAMPLERS,
               'collate_fn': R.FUNCTIONS, 'worker_init_fn': R.FUNCTIONS}
#: Registry of what is under a key, by the registry of the dict that has the key.
_CHILDREN = {
    R.DATASETS: {'dataset': R.DATASETS, 'datasets': R.DATASETS, 'pipeline': R.TRANSFORMS},
    R.EVALUATOR: {'metrics': R.METRICS}, R.VISUALIZERS: {'vis_backends': R.VISBACKENDS},
    R.OPTIM_WRAPPERS: {'optimizer': R.OPTIMIZERS}, R.TRANSFORMS: {'transforms': R.TRANSFORMS}}
#: Keys of a model's parts whose types are in no registry of models, or which are read before a layer is built.
_OPS = {'nms', 'roi_layer', 'upsample_cfg'}
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
    lines = _check_train_loop(cfg.get('train_cfg')) + _check_optim_wrapper(cfg)
    for path, names in _PLAIN.items():
        is_passed_on = path in ('randomness', 'env_cfg.mp_cfg')  # to functions without other arguments
        lines += check_names(value_at(cfg, path), path, names, path, 'rejected' if is_passed_on else 'ignored')
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
    """Return the findings of a dict with a type and of those inside, or of each in a list; anything else has none.

    The default scope must be that of the run. If the class of the part around it is not ``known``, it may do anything
    with a type that is not registered.
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
            lines += check_settings(node.get('filter_cfg'), f'{path}.filter_cfg')
            lines += check_names(node.get('metainfo'), f'{path}.metainfo', ('classes', 'palette'), node['type'],
                                 'passed on')
        if type_name(node['type']) == 'Albu':  # what it holds is from another package
            return lines
    inside = _CHILDREN.get(registry, {}) if registry is not R.MODELS else {
        **dict.fromkeys(node.keys() - _OPS, registry), 'init_cfg': R.WEIGHT_INITIALIZERS}
    return lines + [line for key, part in node.items() if key in inside
                    for line in visit(part, f'{path}.{key}', inside[key], known)]


def _unknown_type(path, name, roots):
    """Return the finding of a type that is in none of some registries.

    The parts of a model may be from anywhere: there it is one only if it is nearly a name, else building it says so.
    """
    names, name = set(), str(name)
    for root in roots:
        with root.switch_scope_and_registry(None) as inner:  # of the default scope
            names |= {*inner.module_dict, *(inner.parent or inner).module_dict}
    if roots[0] is R.MODELS and not nearest(name.rpartition('.')[2], names):
        return []
    return [finding(path, name, f'there is no such {roots[0].name}; your own type must be registered by a module in '
                    'custom_imports', name.rpartition('.')[2], names)]


def _check_train_loop(node):
    if isinstance(node, dict) and not {'type', 'by_epoch'} & {*node}:
        return [finding('train_cfg', node, "it has no type, such as 'EpochBasedTrainLoop' or 'IterBasedTrainLoop'")]
    return visit(node, 'train_cfg', R.LOOPS)


def _check_optim_wrapper(cfg):
    node, path = cfg.get('optim_wrapper'), 'optim_wrapper'
    if not isinstance(node, dict) or 'optimizer' not in node:
        return []  # a user-defined constructor may read anything
    lines = visit({'type': 'OptimWrapper', **node}, path, R.OPTIM_WRAPPERS)
    clip, constructors = node.get('clip_grad') or {}, R.OPTIM_WRAPPER_CONSTRUCTORS
    clips = dict(norm=clip_grad_norm_, value=clip_grad_value_).get(clip.get('type', 'norm'))
    kind = class_of(node.get('type', 'OptimWrapper'), R.OPTIM_WRAPPERS)
    lines += check_keys(clip, f'{path}.clip_grad', clips) if clips and kind and is_known(kind) else []
    if node.get('constructor') and class_of(node['constructor'], constructors) is None:
        lines += _unknown_type(f'{path}.constructor', node['constructor'], [constructors])
    constructor, rules = _constructor_of(node), node.get('paramwise_cfg') or {}
    if constructor and is_known(constructor):
        lines += check_names(rules, f'{path}.paramwise_cfg', _RULES, constructor.__name__)
        optimizer = class_of(node['optimizer'].get('type'), R.OPTIMIZERS)
        options, closed = arguments_of(optimizer) if optimizer else ((), False)
        for key, rule in (rules.get('custom_keys') or {}).items() if closed else ():
            # other keys than the factors become options of the optimizer for these parameters
            lines += check_names(rule, f'{path}.paramwise_cfg.custom_keys.{key}',
                                 {*options, 'lr_mult', 'decay_mult'}, 'the optimizer', 'ignored')
    return lines


def _constructor_of(wrapper, scope=None):
    """Return the class that reads ``paramwise_cfg`` if it does so as mmengine's, else None: others have own rules."""
    kind = class_of(wrapper.get('constructor', 'DefaultOptimWrapperConstructor'), R.OPTIM_WRAPPER_CONSTRUCTORS, scope)
    return kind if getattr(kind, 'add_params', None) is DefaultOptimWrapperConstructor.add_params else None


def check_paramwise(cfg, model):
    """Check that every key of ``custom_keys``, for learning rates and weight decay, matches a parameter of the model.

    Recipes have rules for parts that other models lack: a rule without a match is logged. It is a `ConfigError` only if
    its key is nearly the name of a parameter, and not even then with ``config_findings = 'warn'`` in the config. Frozen
    parameters count as matches, so that freezing more makes no rule wrong.
    """
    wrapper = cfg.get('optim_wrapper') or {}
    rules = wrapper.get('paramwise_cfg') if isinstance(wrapper, dict) else None
    if not rules or not _constructor_of(wrapper, cfg.get('default_scope')):
        return
    # with a dot in front, as mmengine has it
    names = [f'.{name}' for name, _ in getattr(model, 'module', model).named_parameters()]
    findings, words = [], {word for name in names for word in name.split('.')}
    for key, value in (rules.get('custom_keys') or {}).items():
        if not any(key in name for name in names):
            wrong = next((part for part in key.split('.') if not any(part in word for word in words)), key)
            meant = meant_by(wrong, words)
            line = finding(f'optim_wrapper.paramwise_cfg.custom_keys.{key}', value, 'no parameter of the model has '
                           'this in its name', wrong, [meant] if meant else ())
            findings.append(line if meant else Hint(line))
    tell(findings, cfg.get('config_findings', 'stop'))
