"""The models of a benchmark: XCiT, the authors' form, and other backbones."""
import copy

import torch
from mmengine.device import get_device
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from xcit_dense.archs import get_arch
from xcit_dense.compat.versions import check_versions
from xcit_dense.errors import SetupError
from xcit_dense.models import ReferenceXCiT, XCiT

from .runtimes import RUNTIMES, build_runtimes

MODES = ('inference', 'training')


class TimmXCiT(nn.Module):
    """timm's XCiT without class attention: the map of the last block, without a pyramid.

    Args:
        arch: Name of an architecture.

    Raises:
        SetupError: timm is not installed.
    """

    def __init__(self, arch):
        super().__init__()
        self.model = _from_timm(f'xcit_{arch}_224', num_classes=0)
        self.model.cls_attn_blocks = self.model.norm = None

    def forward(self, x):
        """Map images (B, 3, H, W) to a tuple of tokens (B, N, C)."""
        x, grid = self.model.patch_embed(x)
        x = x + self.model.pos_embed(len(x), *grid).flatten(2).transpose(1, 2)
        for block in self.model.blocks:
            x = block(x, *grid)
        return (x, )


class ViT(nn.Module):
    """timm's ViT of the depth, width and patch of an XCiT: attention between all tokens, without a pyramid.

    Args:
        arch: The `Arch` of the XCiT.
    """

    def __init__(self, arch):
        super().__init__()
        self.model = _from_timm(f'vit_small_patch{arch.patch_size}_224', embed_dim=arch.embed_dims, depth=arch.depth,
                                num_heads=arch.num_heads, num_classes=0, dynamic_img_size=True)

    def forward(self, x):
        """Map images (B, 3, H, W) to a tuple of tokens (B, N + 1, C)."""
        return (self.model.forward_features(x), )


def _from_timm(name, **options):
    try:
        import timm
    except ImportError:
        raise SetupError('the comparison with timm needs timm: pip install timm') from None
    return timm.create_model(name, **options)


def _from_mmdet(**cfg):
    check_versions('mmdet')
    import mmdet.models  # noqa: F401
    init_default_scope('mmdet')
    return MODELS.build(cfg)


#: Other models by name: functions from the arch of XCiT to a module that maps images to a tuple of maps.
RIVALS = {
    'authors': lambda arch: ReferenceXCiT(arch, norm_cfg=dict(type='BN')),
    'timm': TimmXCiT,
    'vit': lambda arch: ViT(get_arch(arch)),
    'swin_t': lambda arch: _from_mmdet(type='SwinTransformer', drop_path_rate=0.),  # mmdet's defaults are Swin-T's
    'resnet50': lambda arch: _from_mmdet(type='ResNet', depth=50, norm_eval=False),
    'convnext_t': lambda arch: _from_timm('convnext_tiny', features_only=True),
}


def build_models(arch, mode, names, compiled=False, shape=None):
    """Build models on the device, in the mode, ready to run.

    Args:
        arch: Architecture of XCiT; must be a name if timm is among the models.
        mode: One of `MODES`.
        names: ``'ours'``, keys of `RIVALS` and, together with ours in inference on a CPU, keys of `RUNTIMES`. Ours,
            the authors' form and the runtimes have the same parameters.
        compiled: Whether to add every model a second time, under `torch.compile`; of ours the blocks, as ``--compile``.
        shape: Shape of the images, for runtimes.

    Returns:
        Modules by name.
    """
    torch.manual_seed(0)
    ours = XCiT(arch, norm_cfg=dict(type='BN'))
    randomise(ours)
    models = {name: ours if name == 'ours' else RIVALS[name](arch) for name in names
              if name not in RUNTIMES}
    if 'authors' in models:
        models['authors'].load_state_dict(ours.state_dict())
    for name, model in models.items():
        model.to(get_device()).train(mode == 'training')
        if name == 'ours' and mode == 'inference':
            models[name] = model.fuse()
    if compiled:
        torch._dynamo.reset()
        others = {f'{name}, compiled': torch.compile(model, dynamic=False) for name, model in models.items()
                  if name != 'ours'}
        if 'ours' in models:
            models['ours, compiled'] = copy.deepcopy(models['ours'])
            models['ours, compiled'].compile_blocks()
        models |= others
    return models | build_runtimes([name for name in names if name in RUNTIMES], models.get('ours'), shape)


@torch.no_grad()
def randomise(model):
    """Move LayerScale, temperatures, biases and statistics away from their initial values, which hide mistakes."""
    for name, value in model.state_dict().items():
        if name.endswith(('gamma1', 'gamma2', 'gamma3', 'temperature', 'running_var')):
            value.uniform_(0.5, 1.5)
        elif name.endswith(('bias', 'running_mean')):
            value.normal_(std=0.1)
