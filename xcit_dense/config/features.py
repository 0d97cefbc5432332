"""Judge the features of a backbone by a test: by nearest neighbours, or by a linear layer that is trained on them."""
import copy

from mmengine.config import Config, ConfigDict

from ..archs import arch_names
from ..data.classes import outputs_of
from ..data.datasets import LOADERS, datasets
from ..errors import ConfigError
from ..text import type_name
from .catalog import list_models
from .check.keys import learns_without_labels
from .options import add_hook
from .resolution import find_resolution

#: Loaders whose data such a test reads.
READ = (LOADERS[0], LOADERS[2])
#: The last words of configs of classifiers, the most likely choice first.
_KINDS = ('custom', 'small', 'imagenet')
#: Settings of a data loader that do not depend on what is done with its images.
_LOADER_KEYS = ('num_workers', 'pin_memory', 'prefetch_factor', 'multiprocessing_context', 'timeout')


def check_classifier(cfg: Config, name, option: str):
    """Check that a config is of a classifier, before anything else is read.

    Args:
        cfg: The config.
        name: Its name, for the error.
        option: The option that needs it: ``--knn`` or ``--linear``.

    Raises:
        ConfigError: It is not.
    """
    model = cfg.get('model') or {}
    if type_name((model.get('backbone') or {}).get('type')) != 'XCiTClassifier':
        raise ConfigError(f'{option} needs the config of a classifier (XCiTClassifier), such as xcit_s12_p16_custom: '
                          f'it judges features of whole images. {name} has the backbone '
                          f'{type_name((model.get("backbone") or {}).get("type")) or "unknown"}')
    if not cfg.get(LOADERS[0]):
        raise ConfigError(f'{option} learns from the training images, and the config has no {LOADERS[0]}')


def check_labelled(cfg: Config, name, option: str = None):
    """Check that a config to test is not for images without labels.

    Args:
        cfg: As for `check_classifier`.
        name: As for `check_classifier`.
        option: ``--knn`` or ``--linear`` if one is given.

    Raises:
        ConfigError: It is; the error names the config of a classifier of the same arch.
    """
    if learns_without_labels(cfg):
        raise ConfigError(f'{option or "a test"} needs labelled images, and {name} is a config for images without '
                          f'labels: give the config of a classifier of the same arch{_same_arch(cfg.model)}'
                          f'{"" if option else ", and --knn or --linear"}')


def _same_arch(model):
    """Return the name of a config as part of a sentence; '' for an arch of the user's own."""
    arch = (model.get('backbone') or {}).get('arch')
    if arch not in arch_names():
        return ''
    size, depth, patch = arch.split('_')
    others = (patch, ''), ({'p8': 'p16', 'p16': 'p8'}[patch], f' --cfg-options model.backbone.arch={arch}')
    for kind in _KINDS:
        for other, more in others:
            if (name := f'xcit_{size[0]}{depth}_{other}_{kind}') in list_models():
                return f', such as {name}{more}'
    return ''


def set_knn(cfg: Config, k: int):
    """Test with a vote of the ``k`` nearest training images, as ``--knn`` asks."""
    pipeline = datasets(cfg, LOADERS[2:])[0]['pipeline']
    loader = _loader(cfg, pipeline, cfg[LOADERS[2]].get('batch_size'), shuffle=False)
    _judge(cfg, 'KNNHead', 'KNNHook', loader=loader, k=k)


def set_linear(cfg: Config, epochs: int):
    """Test with a linear layer that is trained on the features for ``epochs``, as ``--linear`` asks.

    Its images are cropped at random to the size of the test and flipped; nothing else is augmented.

    Raises:
        ConfigError: The pipeline of the test does not show at which size it crops.
    """
    dataset = datasets(cfg, LOADERS[2:])[0]
    side, _ = find_resolution(dataset)
    if side is None:
        raise ConfigError('--linear crops the training images to the size of the test, but the pipeline of '
                          "test_dataloader does not show it: it needs ResizeEdge (edge='short') and CenterCrop")
    replaced = dict(
        ResizeEdge=dict(type='RandomResizedCrop', scale=side, backend='pillow', interpolation='bicubic'),
        CenterCrop=dict(type='RandomFlip', prob=0.5, direction='horizontal'))
    augmented = [replaced.get(type_name(step.get('type')), step) for step in dataset['pipeline']]
    size = cfg[LOADERS[0]].get('batch_size') or cfg[LOADERS[2]].get('batch_size')
    _judge(cfg, 'LinearProbeHead', 'LinearProbeHook', loader=_loader(cfg, augmented, size, shuffle=True),
           held_out_loader=_loader(cfg, dataset['pipeline'], size, shuffle=False), epochs=epochs)


def _judge(cfg, head, hook, **options):
    model = cfg.model
    backbone = dict(model.backbone, num_classes=0, drop_path_rate=0., init_cfg=None)
    head = dict(type=head, num_classes=outputs_of(model) or 1000)  # the default of the backbone
    cfg.model = ConfigDict(type='ImageClassifier', data_preprocessor=model.get('data_preprocessor'), backbone=backbone,
                           head=head)
    add_hook(cfg, hook, **options)


def _loader(cfg, pipeline, batch_size, shuffle):
    """Return a loader of the training images in another pipeline, each once: wrappers may repeat images."""
    given = cfg[LOADERS[0]]
    parts = [dict(copy.deepcopy(dict(dataset)), pipeline=copy.deepcopy(list(pipeline)))
             for dataset in datasets(cfg, LOADERS[:1])]
    dataset = parts[0] if len(parts) == 1 else dict(type='ConcatDataset', datasets=parts)
    return dict({key: given[key] for key in _LOADER_KEYS if key in given}, batch_size=batch_size or 1,
                persistent_workers=shuffle and bool(given.get('num_workers')),
                sampler=dict(type='DefaultSampler', shuffle=shuffle), dataset=dataset)
