"""Learning rates that shrink with the depth, for fine-tuning: what lies near the image changes least."""
import re
from numbers import Real

from mmengine.optim import DefaultOptimWrapperConstructor
from mmengine.registry import OPTIM_WRAPPER_CONSTRUCTORS

from ..errors import ConfigError
from ..models.trunk import Trunk


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor of optimizers, and then each rate times ``layer_decay_rate`` to the power of its height.

    ``optim_wrapper=dict(constructor='LayerDecayConstructor', paramwise_cfg=dict(layer_decay_rate=0.9, ...))``; every
    other rule of ``paramwise_cfg`` holds as ever. Of an XCiT of L blocks, stem and positions are layer 0, block i
    (0-based) is layer i + 1; its pyramid and class attention, neck and heads are layer L + 1, with the whole rate.

    Raises:
        ConfigError: The rate is none above 0 and up to 1, or there is no XCiT.
    """

    #: Keys of ``paramwise_cfg`` beside mmengine's.
    own_rules = ('layer_decay_rate', )

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict = None):
        super().__init__(optim_wrapper_cfg, paramwise_cfg)
        self.decay_rate = self.paramwise_cfg.get('layer_decay_rate')
        if not isinstance(self.decay_rate, Real) or isinstance(self.decay_rate, bool) or not 0 < self.decay_rate <= 1:
            raise ConfigError('LayerDecayConstructor needs optim_wrapper.paramwise_cfg.layer_decay_rate above 0 and up '
                              f'to 1, such as 0.9; got {self.decay_rate!r}')

    def __call__(self, model):
        """Build the optimizer wrapper of a model, wrapped for a distributed run or not."""
        wrapper = super().__call__(model)
        heights = _heights(getattr(model, 'module', model))
        for group in wrapper.optimizer.param_groups:  # one for each parameter
            group['lr'] *= self.decay_rate**heights[group['params'][0]]
        return wrapper


def _heights(model):
    """Return how many layers lie between each parameter and the last one."""
    trunks = {name: module for name, module in model.named_modules() if isinstance(module, Trunk)}
    if not trunks:
        raise ConfigError(f'LayerDecayConstructor needs an XCiT, and {type(model).__name__} has none')
    heights = dict.fromkeys(model.parameters(), 0)
    for trunk in trunks.values():
        for name, parameter in trunk.named_parameters():
            block = re.match(r'blocks\.(\d+)\.', name)
            if block or name.startswith(('patch_embed.', 'pos_embeder.')):
                layer = int(block[1]) + 1 if block else 0
                heights[parameter] = len(trunk.blocks) + 1 - layer
    return heights
