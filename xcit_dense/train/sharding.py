"""Sharded training (FSDP), for parameters, gradients and optimizer states that are too large for one device.

``configs/_base_/fsdp.py`` turns it on: ``model_wrapper_cfg = dict(type='MMFullyShardedDataParallel',
auto_wrap_policy='xcit_blocks')``. mmengine's other way, FlexibleRunner and strategies, reads checkpoints as pickles
and runs the config text in them; here `DenseRunner` is used, with all its guarantees. Checkpoints have whole tensors
under plain names, so a run can be resumed with or without sharding.
"""
import re

from mmengine.hooks import EMAHook
from mmengine.optim import AmpOptimWrapper
from mmengine.registry import FUNCTIONS, MODEL_WRAPPERS
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from ..data.batches import is_sharded, unwrapped
from ..errors import ConfigError
from ..models import XCABlock
from .hooks import CompileHook


@FUNCTIONS.register_module(name='xcit_blocks')
def wrap_blocks(module, recurse, nonwrapped_numel) -> bool:
    """Wrap each XCiT block separately, for `torch.distributed.fsdp`; heads and the rest are the outermost unit."""
    return recurse or isinstance(module, XCABlock)


def asks_for_sharding(wrapper_cfg) -> bool:
    """Whether a ``model_wrapper_cfg`` shards the model."""
    kind = (wrapper_cfg or {}).get('type')
    kind = MODEL_WRAPPERS.get(kind) if isinstance(kind, str) else kind
    return isinstance(kind, type) and issubclass(kind, FSDP)


def shard(runner):
    """Shard a runner's model, which has the same weights in every process, over the processes; return it.

    Mixed precision is set up for it.

    Raises:
        ConfigError: The run uses something that does not work with sharding.
    """
    model, cfg, wrapper = runner.model, runner.cfg, runner.optim_wrapper
    rules = wrapper.get('paramwise_cfg') or {}
    sampler = (cfg.get('val_dataloader') or {}).get('sampler') or {}
    refused = {
        f'the model {type(model).__name__}': not getattr(model, 'can_be_sharded', True),
        'EMAHook': any(isinstance(hook, EMAHook) for hook in runner.hooks),
        '--compile (CompileHook)': any(isinstance(hook, CompileHook) for hook in runner.hooks),
        'sync_bn': cfg.get('sync_bn'),
        'optim_wrapper.accumulative_counts': wrapper.get('accumulative_counts', 1) > 1,
        'optim_wrapper.clip_grad other than max_norm and norm_type':
            {**(wrapper.get('clip_grad') or {})}.keys() - {'type', 'max_norm', 'norm_type'},
        # they look at shapes and whole names of parameters
        'optim_wrapper.constructor': wrapper.get('constructor', 'DefaultOptimWrapperConstructor')
            != 'DefaultOptimWrapperConstructor',
        'optim_wrapper.paramwise_cfg.flat_decay_mult': 'flat_decay_mult' in rules,
        'a name within a block in optim_wrapper.paramwise_cfg.custom_keys':
            any(re.search(r'blocks\.\d+\.', key) for key in rules.get('custom_keys') or {}),
        # the processes wait for each other at every block
        "model.test_cfg.mode = 'slide'": (getattr(model, 'test_cfg', None) or {}).get('mode') == 'slide',
        'val_dataloader.sampler.round_up = False': sampler.get('round_up') is False,
    }
    refused = [name for name, found in refused.items() if found]
    if refused:
        raise ConfigError(f'a sharded model (FSDP, model_wrapper_cfg) does not work with {", ".join(refused)}. Remove '
                          'these settings, or model_wrapper_cfg')
    if wrapper.get('type') in ('AmpOptimWrapper', AmpOptimWrapper):
        wrapper['use_fsdp'] = True
    device = next(model.parameters()).device
    model = MODEL_WRAPPERS.build(dict(cfg.model_wrapper_cfg), default_args=dict(module=model, device_id=device))
    # on a CPU torch returns offloaded tensors in a buffer that it reuses for the next ones
    gathered = dict(rank0_only=True, offload_to_cpu=device.type != 'cpu')
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(**gathered),
                             FullOptimStateDictConfig(**gathered))
    return model


def model_state(model) -> dict:
    """Return the tensors of a model by plain name; if it is sharded, all processes must call, the first gets them."""
    return (model if is_sharded(model) else unwrapped(model)).state_dict()


def optimizer_state(model, wrapper) -> dict:
    """Return the state of an optimizer wrapper as if the model were not sharded; every process must call this."""
    state = wrapper.state_dict()
    if not is_sharded(model):
        return state
    whole = FSDP.optim_state_dict(model, wrapper.optimizer)
    if whole:  # on the first process
        numbers = {name: i for i, name in enumerate(n for group in whole['param_groups'] for n in group['params'])}
        state['state'] = {numbers[name]: value for name, value in whole['state'].items()}
    return state


def own_optimizer_state(model, wrapper, state) -> dict:
    """Return this process's part of what `optimizer_state` returned, for a sharded model."""
    places = {id(p): i for i, p in enumerate(p for g in wrapper.optimizer.param_groups for p in g['params'])}
    names = {places[id(p)]: name.replace('_fsdp_wrapped_module.', '') for name, p in model.named_parameters()
             if id(p) in places}
    whole = dict(state={names[i]: value for i, value in state['state'].items()},
                 param_groups=[dict(group, params=[names[i] for i in group['params']])
                               for group in state['param_groups']])
    return dict(state, **FSDP.optim_state_dict_to_load(model, wrapper.optimizer, whole))
