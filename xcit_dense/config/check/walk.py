"""Compare each part of a config with the class that it names; nothing is built."""
import difflib
import inspect
import re

from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from mmengine.registry import (
    DATA_SAMPLERS,
    DATASETS,
    EVALUATOR,
    FUNCTIONS,
    HOOKS,
    LOG_PROCESSORS,
    LOOPS,
    METRICS,
    MODEL_WRAPPERS,
    MODELS,
    OPTIM_WRAPPER_CONSTRUCTORS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    RUNNERS,
    TASK_UTILS,
    TRANSFORMS,
    VISBACKENDS,
    VISUALIZERS,
    WEIGHT_INITIALIZERS,
)
from mmengine.runner import Runner
from mmengine.utils import import_modules_from_strings
from mmengine.utils.dl_utils import set_multi_processing
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.utils.data import DataLoader

from ...data.datasets import LOADERS
from .signatures import accepted_keys, ignores_others, mentioned_names, mentioned_texts

_DEFAULT_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
_ENV_KEYS = {'cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'}
_LAYER_CFGS = ('norm_cfg', 'act_cfg', 'conv_cfg')
#: In every config of mmdet, and read no longer.
_HARMLESS = ('debug', )
#: What may stand beside the arguments of the class, by registry.
_EXTRA_KEYS = {HOOKS: {'priority'}, OPTIM_WRAPPERS: {'constructor', 'paramwise_cfg'},
               PARAM_SCHEDULERS: {'convert_to_iter_based'}, WEIGHT_INITIALIZERS: {'override'}}
#: Registry of the dicts under a key, by the registry of the dict that has the key.
_CHILDREN = {
    DATASETS: {r'datasets?': DATASETS, r'pipeline': TRANSFORMS},
    TRANSFORMS: {r'transforms?|pre_transform|policies': TRANSFORMS},
    EVALUATOR: {r'metrics': METRICS},
    VISUALIZERS: {r'vis_backends': VISBACKENDS},
    OPTIM_WRAPPERS: {r'optimizer': OPTIMIZERS},
    MODELS: {
        r'init_cfg': WEIGHT_INITIALIZERS,
        r'(.+_)?(assigner|sampler|coder|generator)|iou_calculator|match_costs?': TASK_UTILS,
        r'backbone|neck|(.+_)?head|loss|loss_.+|.+_loss|.+_roi_extractor|data_preprocessor|segmentor|detector': MODELS,
    },
}
_CHILDREN[TASK_UTILS] = _CHILDREN[MODELS]
#: Packages that build what is under these keys from the registries; classes of others may do as they like.
_PACKAGES = ('mmengine', 'mmcv', 'mmdet', 'mmseg', 'mmpretrain', 'xcit_dense')


class ConfigWalker:
    """Walks through what has a ``type`` or known keys, and collects findings.

    Args:
        cfg: The config.
    """

    def __init__(self, cfg):
        self.cfg = cfg
        self.findings = []
        self._scope = cfg.get('default_scope') or 'mmengine'

    def check_all(self):
        """Look at every part that something reads."""
        cfg = self.cfg
        for name in LOADERS:
            if isinstance(cfg.get(name), dict):
                self._check_loader(cfg[name], name)
        self._check_model(cfg.get('model'), 'model')
        self._visit(cfg.get('data_preprocessor'), 'data_preprocessor', MODELS)
        for name in ('train_cfg', 'val_cfg', 'test_cfg'):
            if isinstance(cfg.get(name), dict):
                self._check_loop(cfg[name], name)
        self._check_optim_wrapper(cfg.get('optim_wrapper'), 'optim_wrapper')
        self._visit(cfg.get('param_scheduler'), 'param_scheduler', PARAM_SCHEDULERS)
        for name in ('val_evaluator', 'test_evaluator'):
            part = cfg.get(name)
            if isinstance(part, dict) and 'metrics' in part:
                self._visit({'type': 'Evaluator', **part}, name, EVALUATOR)
            else:
                self._visit(part, name, METRICS)
        self._check_hooks()
        self._visit(cfg.get('visualizer'), 'visualizer', VISUALIZERS)
        self._visit_with_default('log_processor', LOG_PROCESSORS, 'LogProcessor')
        self._visit_with_default('model_wrapper_cfg', MODEL_WRAPPERS, 'MMDistributedDataParallel')
        self._check_plain_dicts()

    def resolve(self, kind, registry, scope=None):
        """Return the class of a type, or None."""
        if not isinstance(kind, str):
            return kind if callable(kind) else None
        with registry.switch_scope_and_registry(scope or self._scope) as inner:
            try:
                found = inner.get(kind)
            except RuntimeError:  # mmengine's way to say that a dotted name is not there
                return None
        return found if callable(found) else None

    def _add(self, path, value, problem, name=None, names=()):
        self.findings.append(finding(path, value, problem, name, names))

    def _check_loader(self, node, path):
        known = accepted_keys(DataLoader) | {'num_batch_per_epoch', 'disable_subprocess_warning'}
        self._check_keys(node, path, known, 'a data loader')
        for name, registry in (('dataset', DATASETS), ('sampler', DATA_SAMPLERS), ('batch_sampler', DATA_SAMPLERS),
                               ('collate_fn', FUNCTIONS), ('worker_init_fn', FUNCTIONS)):
            self._visit(node.get(name), f'{path}.{name}', registry)

    def _check_loop(self, node, path):
        names = dict(train_cfg='IterBasedTrainLoop', val_cfg='ValLoop', test_cfg='TestLoop')
        if path == 'train_cfg' and 'type' in node and 'by_epoch' in node:
            self._add(f'{path}.by_epoch', node['by_epoch'], f'{path}.type = {_short(node["type"])} says it already; '
                      'take one of the two out')
            return
        if path == 'train_cfg' and 'type' not in node:
            if 'by_epoch' not in node:
                self._add(path, node, "it has no type, such as 'EpochBasedTrainLoop' or 'IterBasedTrainLoop'")
                return
            names['train_cfg'] = 'EpochBasedTrainLoop' if node['by_epoch'] else 'IterBasedTrainLoop'
            node = {key: value for key, value in node.items() if key != 'by_epoch'}
        self._visit({'type': names[path], **node}, path, LOOPS)

    def _check_model(self, node, path):
        kinds = self._visit(node, path, MODELS)
        if not kinds or not isinstance(node, dict):
            return
        for name in ('train_cfg', 'test_cfg'):
            self._check_mentioned(node.get(name), f'{path}.{name}', kinds)

    def _check_optim_wrapper(self, node, path):
        if not isinstance(node, dict) or 'optimizer' not in node:
            return  # a constructor of the user's own reads what it likes
        self._visit({'type': 'OptimWrapper', **node}, path, OPTIM_WRAPPERS)
        kind = self.resolve(node.get('type', 'OptimWrapper'), OPTIM_WRAPPERS)
        runner = self.resolve(self.cfg.get('runner_type', 'Runner'), RUNNERS)
        if inspect.isclass(kind) and not issubclass(kind, OptimWrapper) and inspect.isclass(runner) \
                and issubclass(runner, Runner):
            self._add(f'{path}.type', node['type'], f'it needs the FlexibleRunner and its strategy, and the config '
                      f"has runner_type = '{runner.__name__}'; take OptimWrapper or AmpOptimWrapper")
        clip = node.get('clip_grad')
        if isinstance(clip, dict) and clip.get('type', 'norm') in ('norm', 'value'):
            clips = clip_grad_norm_ if clip.get('type', 'norm') == 'norm' else clip_grad_value_
            self._check_keys(clip, f'{path}.clip_grad', accepted_keys(clips) - {'parameters'}, clips.__name__)
        rules = node.get('paramwise_cfg')
        constructor = self.resolve(node.get('constructor', 'DefaultOptimWrapperConstructor'),
                                   OPTIM_WRAPPER_CONSTRUCTORS)
        if constructor is None:
            self._add_unknown(f'{path}.constructor', node['constructor'], OPTIM_WRAPPER_CONSTRUCTORS, None)
        elif isinstance(rules, dict):
            names = mentioned_names([constructor])
            self._check_keys(rules, f'{path}.paramwise_cfg', names, constructor.__name__)
            optimizer = self.resolve(node['optimizer'].get('type'), OPTIMIZERS) \
                if isinstance(node['optimizer'], dict) else None
            options = accepted_keys(optimizer) if optimizer else None
            if constructor is DefaultOptimWrapperConstructor and options is not None:
                for key, rule in (rules.get('custom_keys') or {}).items():
                    # what is no factor becomes an option of the optimizer for these parameters
                    self._check_keys(rule, f'{path}.paramwise_cfg.custom_keys.{key}',
                                     options | {'lr_mult', 'decay_mult'}, 'a rule of custom_keys')

    def _check_hooks(self):
        hooks = self.cfg.get('default_hooks') or {}
        for name, hook in hooks.items():
            path = f'default_hooks.{name}'
            if name not in _DEFAULT_HOOKS and near(name, _DEFAULT_HOOKS):
                self._add(path, hook, 'no default hook has this name', name, _DEFAULT_HOOKS)
            elif hook is None and name not in _DEFAULT_HOOKS:
                self._add(path, hook, f'only {", ".join(_DEFAULT_HOOKS)} can be None')
            elif isinstance(hook, dict) and 'type' not in hook:
                self._add(path, hook, 'it has no type')
            else:
                self._visit(hook, path, HOOKS)
        self._visit(self.cfg.get('custom_hooks'), 'custom_hooks', HOOKS)

    def _check_plain_dicts(self):
        for path, known in (
                ('env_cfg', _ENV_KEYS),
                ('env_cfg.mp_cfg', accepted_keys(set_multi_processing) - {'distributed'}),
                ('randomness', accepted_keys(Runner.set_randomness) - {'self'}),
                ('auto_scale_lr', {'enable', 'base_batch_size'}),
                ('custom_imports', accepted_keys(import_modules_from_strings))):
            name, _, inner = path.partition('.')
            node = self.cfg.get(name)
            self._check_keys(node.get(inner) if inner and isinstance(node, dict) else node, path, known, name)

    def _visit_with_default(self, name, registry, kind):
        node = self.cfg.get(name)
        if isinstance(node, dict):
            self._visit({'type': kind, **node}, name, registry)

    def _visit(self, node, path, registry, scope=None, owner=None):
        """Check a dict with a type, or every one in lists and dicts of them; return the classes found."""
        if isinstance(node, (list, tuple)):
            return [kind for i, part in enumerate(node)
                    for kind in self._visit(part, f'{path}.{i}', registry, scope, owner)]
        if not isinstance(node, dict):
            return []
        scope, kind = node.get('_scope_', scope), None
        if 'type' in node:
            kind = self.resolve(node['type'], registry, scope)
            if kind is None and (owner is None or owner.__module__.partition('.')[0] in _PACKAGES):
                self._add_unknown(f'{path}.type', node['type'], registry, scope)
            if kind is not None:
                self._check_arguments(node, path, kind, registry, scope, owner)
        kinds = [kind] if inspect.isclass(kind) else []
        if registry is DATASETS and kinds:
            self._check_dataset(node, path, kind)
        children = {} if getattr(kind, '__name__', None) == 'Albu' else _CHILDREN.get(registry, {})
        for key, value in node.items():
            for pattern, inner in children.items():
                if re.fullmatch(pattern, str(key)):
                    kinds += self._visit(value, f'{path}.{key}', inner, scope, kind or owner)
                    break
            else:
                if isinstance(value, (dict, list, tuple)) and registry in (MODELS, TASK_UTILS):
                    kinds += self._visit_other(key, value, f'{path}.{key}', scope, kind or owner)
        return kinds

    def _visit_other(self, key, value, path, scope, owner):
        """Check what is under a key of a model that names no part of it."""
        if isinstance(value, (list, tuple)):
            return [kind for i, part in enumerate(value)
                    for kind in self._visit_other(key, part, f'{path}.{i}', scope, owner)]
        if not isinstance(value, dict):
            return []
        if 'type' not in value:
            return self._visit(value, path, MODELS, scope, owner)  # a dict of dicts, such as train_cfg.rpn
        if key in _LAYER_CFGS:
            kind = self.resolve(value['type'], MODELS, scope)
            if kind is not None and key != 'conv_cfg':
                self._check_arguments(value, path, kind, MODELS, scope, owner, {'requires_grad'})
        elif key in ('nms', 'roi_layer'):
            self._check_op(key, value, path)
        return []

    def _check_arguments(self, node, path, kind, registry, scope, owner, extra=()):
        """Check the keys of a dict with a type; ``owner`` is the class that builds it."""

        def resolve(name):
            return next(filter(None, (self.resolve(name, place, scope) for place in (registry, MODELS))), None)

        keys = accepted_keys(kind, node, resolve)
        if keys is None:
            return
        keys = keys | _EXTRA_KEYS.get(registry, set()) | set(extra)
        if registry is PARAM_SCHEDULERS and node.get('convert_to_iter_based'):
            parameters = inspect.signature(kind.build_iter_from_epoch).parameters.values()
            keys |= {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        if owner is not None and not keys.issuperset(node):  # an owner may take keys out before it builds its parts
            keys |= set(node) & (mentioned_texts(owner) or set(node))
        self._check_keys(node, path, keys, kind.__name__, only_near=ignores_others(kind))

    def _check_op(self, key, node, path):
        """Check a dict whose type mmcv looks up among its ops."""
        from mmcv import ops
        kind = getattr(ops, str(node['type']), None)
        known = accepted_keys(kind, node) if callable(kind) else None
        if known is not None:
            known = known - ({'boxes', 'scores'} if key == 'nms' else {'spatial_scale'})
            self._check_keys(node, path, known | ({'class_agnostic', 'split_thr'} if key == 'nms' else set()),
                             node['type'])

    def _check_dataset(self, node, path, kind):
        for name in ('filter_cfg', 'data_prefix'):
            self._check_mentioned(node.get(name), f'{path}.{name}', [kind])
        for key, value in (node.get('metainfo') or {}).items() if isinstance(node.get('metainfo'), dict) else ():
            known = ('classes', 'palette')
            if key not in known and near(key.lower(), known):
                self._add(f'{path}.metainfo.{key}', value, 'nothing reads it', key.lower(), known)

    def _check_mentioned(self, node, path, kinds):
        """Check that every key of a dict without a type is a name in the code of some classes."""
        names = mentioned_names(kinds)
        parts = node if isinstance(node, (list, tuple)) else [node]
        for i, part in enumerate(parts):
            if names is None or not isinstance(part, dict) or 'type' in part:
                continue
            part_path = f'{path}.{i}' if part is not node else path
            # configs carry along keys of other models: only what looks like a slip is one
            self._check_keys(part, part_path, names, kinds[0].__name__, only_near=True)
            for key, value in part.items():
                if key in names:
                    self._check_mentioned(value, f'{part_path}.{key}', kinds)

    def _check_keys(self, node, path, known, reader, only_near=False):
        if not isinstance(node, dict) or known is None:
            return
        for key, value in node.items():
            if key in known or key in ('type', '_scope_', *_HARMLESS):
                continue
            if not only_near or near(key, known):
                self._add(f'{path}.{key}', value, f'{reader} does not take it', key, known)

    def _add_unknown(self, path, kind, registry, scope):
        names = set()
        with registry.switch_scope_and_registry(scope or self._scope) as inner:
            while inner is not None:
                names.update(inner.module_dict)
                inner = inner.parent
        self._add(path, kind, f'there is no such {registry.name} in {scope or self._scope}; a type of your own must '
                  'be registered by a module of custom_imports', str(kind).rpartition('.')[2], names)


def near(name, names, cutoff=0.8):
    """Return the name most like one, if there is one that is nearly the same."""
    return next(iter(difflib.get_close_matches(str(name), [str(n) for n in names], n=1, cutoff=cutoff)), None)


def _short(value):
    text = repr(dict(value) if isinstance(value, dict) else value)
    return text if len(text) <= 60 else f'{text[:57]}...'


def finding(path, value, problem, name=None, names=()):
    """Return a line: what is there, what is wrong, and the nearest name or, where there are few, all."""
    meant = near(name, names, 0.6) if name is not None and names else None
    if meant:
        problem += f'; did you mean {meant}?'
    elif names and len(names) <= 25:
        problem += f'; it takes {", ".join(sorted(map(str, names)))}'
    return f'{path} = {_short(value)}: {problem}'
