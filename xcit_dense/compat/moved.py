"""Import paths of before, which dumped configs and pickles name."""
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

#: Old module to its public names, and for each the place of what it is now.
_MOVED = {
    'backbone': {'XCiT': 'models.backbone.XCiT'},
    'layers': {'ConvPatchEmbed': 'models.stem.ConvPatchEmbed', 'FourierPositions': 'models.positions.FourierPositions',
               'XCABlock': 'models.block.XCABlock', 'make_norm_factory': 'models.norms.make_norm_factory'},
    'xca': {'XCA': 'models.xca.XCA'},
    'lpi': {'LPI': 'models.lpi.LPI', 'map_to_tokens': 'models.tokens.map_to_tokens',
            'tokens_to_map': 'models.tokens.tokens_to_map'},
    'ffn': {'FFN': 'models.ffn.FFN'},
    'convs': {'StridedConv2d': 'torch.nn.Conv2d', 'Upsample2': 'torch.nn.ConvTranspose2d'},
    'pyramid': {'PYRAMID_STRIDES': 'models.pyramid.PYRAMID_STRIDES', 'UpsampleTwice': 'torch.nn.Sequential',
                'build_level': 'models.pyramid.build_level'},
    'benchmark.plain': {'PlainXCiT': 'models.reference.ReferenceXCiT'},
}


def install_old_paths(package: str):
    """Let modules of before be imported from ``package``; its new ones must be loaded."""
    for old, names in _MOVED.items():
        module = ModuleType(f'{package}.{old}', 'Names that have moved; kept for configs and pickles of before.')
        for name, place in names.items():
            place, _, attribute = place.rpartition('.')
            found = import_module(place if place.startswith('torch') else f'{package}.{place}')
            setattr(module, name, getattr(found, attribute))
        module.__spec__ = ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
        parent, _, name = module.__name__.rpartition('.')
        setattr(import_module(parent), name, module)
