"""Old import paths, which dumped configs, pickles and other people's code still use."""
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec

_PACKAGE = __name__.partition('.')[0]

#: Old module to the modules that have its names now; or, if names changed too, each name with its new path.
_MOVED = {
    # version 0.1 in its first months
    'backbone': 'models.backbone',
    'layers': {'ConvPatchEmbed': 'models.stem.ConvPatchEmbed', 'FourierPositions': 'models.positions.FourierPositions',
               'XCABlock': 'models.block.XCABlock', 'make_norm_factory': 'models.norms.make_norm_factory'},
    'xca': 'models.xca',
    'lpi': 'models.lpi models.tokens',
    'ffn': 'models.ffn',
    'convs': {'StridedConv2d': 'torch.nn.Conv2d', 'Upsample2': 'torch.nn.ConvTranspose2d'},
    'pyramid': {'PYRAMID_STRIDES': 'models.pyramid.PYRAMID_STRIDES', 'UpsampleTwice': 'torch.nn.Sequential',
                'build_level': 'models.pyramid.build_level'},
    'benchmark.plain': {'PlainXCiT': 'models.reference.ReferenceXCiT'},
    # before the folders weights, data, config, train, predict and cli existed
    'catalog': 'config.catalog config.loading',
    'zoo': 'weights.zoo',
    'checkpoint': 'weights',
    **{f'checkpoint.{name}': f'weights.{name}' for name in ('convert', 'describe', 'files', 'layouts', 'load', 'meta',
                                                               'read', 'safe')},
    'checkpoint.locate': 'weights.fetching',
    'demo_data': 'data.demo',
    'data_check': 'data.check',
    **{f'data_check.{name}': f'data.check.{name}' for name in ('check', 'coco', 'draw', 'drop', 'findings',
                                                               'label_maps')},
    'data_check.classes': 'data.check.agreement',
    'data_check.files': 'data.check.image_files',
    **{f'data_check.{name}': 'data.check.coco_file' for name in ('masks', 'records')},
    'data_files': 'data.files',
    'engine': 'train',
    'engine.config': 'config.loading config.options',
    'engine.data': 'data.datasets data.classes config.options',
    'engine.loading': 'train.loaders',
    **{f'engine.{name}': f'train.{name}' for name in ('curves', 'hooks', 'loops', 'randomness', 'runner', 'saving',
                                                      'sharding', 'startup')},
    'engine.check_config': 'config.check',
    'engine.measure': 'benchmark.measure',
    'engine.settings': 'config.differences',
    'engine.predict': 'predict.predictor',
    'engine.segmentation': 'for_mmseg',
}


class _OldPaths(MetaPathFinder, Loader):
    """Creates an old module when it is imported, with the objects that its names refer to now."""

    def find_spec(self, fullname, path=None, target=None):
        package, _, old = fullname.partition('.')
        if package == _PACKAGE and old in _MOVED:
            return ModuleSpec(fullname, self, is_package=any(name.startswith(f'{old}.') for name in _MOVED))
        return None

    def exec_module(self, module):
        now = _MOVED[module.__name__.partition('.')[2]]
        if isinstance(now, dict):
            for name, place in now.items():
                place, _, attribute = place.rpartition('.')
                found = import_module(place if place.startswith('torch') else f'{_PACKAGE}.{place}')
                setattr(module, name, getattr(found, attribute))
            return
        for place in now.split():
            for name, value in vars(import_module(f'{_PACKAGE}.{place}')).items():
                if not name.startswith('__'):
                    vars(module).setdefault(name, value)


def is_old_path(name: str) -> bool:
    """Whether this name, without that of the package, is an old module."""
    return name in _MOVED


def install_old_paths():
    """Make old modules importable."""
    if not any(isinstance(finder, _OldPaths) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldPaths())  # first: a checkout may still have old folders with caches in them
