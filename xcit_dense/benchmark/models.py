"""The models of a benchmark: XCiT, its released form, and other backbones."""
import torch
from mmengine.device import get_device
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from ..compat import check_versions
from ..errors import SetupError
from ..models import ReferenceXCiT, XCiT

MODES = ('inference', 'training')


class TimmXCiT(nn.Module):
    """timm's XCiT without its class attention: the maps of the last block, and no pyramid.

    Args:
        arch: Name of a size.

    Raises:
        SetupError: timm is not installed.
    """

    def __init__(self, arch):
        super().__init__()
        try:
            import timm
        except ImportError:
            raise SetupError('the rival timm needs timm: pip install timm') from None
        self.model = timm.create_model(f'xcit_{arch}_224', num_classes=0)
        self.model.cls_attn_blocks = self.model.norm = None

    def forward(self, x):
        """Map images (B, 3, H, W) to a tuple of tokens (B, N, C)."""
        x, grid = self.model.patch_embed(x)
        x = x + self.model.pos_embed(len(x), *grid).flatten(2).transpose(1, 2)
        for block in self.model.blocks:
            x = block(x, *grid)
        return (x, )


def _from_mmdet(**cfg):
    check_versions('mmdet')
    import mmdet.models  # noqa: F401
    init_default_scope('mmdet')
    return MODELS.build(cfg)


#: Other models by name: callables that take the arch of XCiT and give a module from images to a tuple of maps.
RIVALS = {
    'plain': lambda arch: ReferenceXCiT(arch, norm_cfg=dict(type='BN')),
    'timm': TimmXCiT,
    'swin_t': lambda arch: _from_mmdet(type='SwinTransformer', drop_path_rate=0.),  # mmdet's defaults are Swin-T's
    'resnet50': lambda arch: _from_mmdet(type='ResNet', depth=50, norm_eval=False),
}


def build_models(arch, mode, names, compiled=False):
    """Build models on the device, in the mode, ready to run.

    Args:
        arch: Of XCiT; a name if timm is among the models.
        mode: One of `MODES`.
        names: ``'ours'`` and keys of `RIVALS`. Ours and the plain form get the same parameters.
        compiled: Add every model once more under `torch.compile`.

    Returns:
        Modules by name.
    """
    torch.manual_seed(0)
    ours = XCiT(arch, norm_cfg=dict(type='BN'))
    _randomise(ours)
    models = {name: ours if name == 'ours' else RIVALS[name](arch) for name in names}
    if 'plain' in models:
        models['plain'].load_state_dict(ours.state_dict())
    for name, model in models.items():
        model.to(get_device()).train(mode == 'training')
        if name == 'ours' and mode == 'inference':
            models[name] = model.fuse()
    if compiled:
        torch._dynamo.reset()
        models |= {f'{name}, compiled': torch.compile(model, dynamic=False) for name, model in models.items()}
    return models


@torch.no_grad()
def _randomise(model):
    """Fresh parameters hide mistakes: LayerScale, temperatures, biases and statistics away from their start."""
    for name, value in model.state_dict().items():
        if name.endswith(('gamma1', 'gamma2', 'gamma3', 'temperature', 'running_var')):
            value.uniform_(0.5, 1.5)
        elif name.endswith(('bias', 'running_mean')):
            value.normal_(std=0.1)
