"""Settings that users change in almost every run: image size, length, batch size, learning rate, augmentation."""
from dataclasses import dataclass
from importlib import import_module

from mmengine.config import Config
from mmengine.logging import print_log

from .._utils.processes import is_first_of_any_launcher
from .._utils.text import shown, type_name
from ..data.datasets import LOADERS, dicts_in
from ..errors import ConfigError
from .augment import set_augmentation
from .check import schedulers
from .check.keys import changes, concerns, copies_of, value_at
from .image_size import box_of, set_image_size
from .length import set_length
from .own import ACCUMULATED, PARTS, own_keys
from .tasks import task_of

_CANVAS_MODULE = 'xcit_dense.for_mmdet'


@dataclass(frozen=True)
class Settings:
    """Values that a user sets; None keeps the value of the config."""
    image_size: int | tuple = None  # side of a square in pixels, or (width, height); see `image_size.set_image_size`
    epochs: int = None  # length of the training, see `xcit_dense.config.length.set_length`
    iterations: int = None  # the same in iterations
    batch_size: int = None  # images in a batch of each process, of the training or, in a test, of that
    lr: float = None  # it is not scaled any further
    workers: int = None  # processes that read the data, for each loader
    augment: str = None  # ``light`` or ``strong``
    canvas: tuple = None  # width and height that batches of a detector are padded to in training, in either orientation
    auto_scale_lr: bool = False  # whether the runner scales the rate by the images of a step; then nothing else does

    @property
    def options(self) -> dict:
        """The values that are set, by option; ``auto_scale_lr`` is none."""
        return {f'--{name.replace("_", "-")}': value for name, value in vars(self).items()
                if value is not None and name != 'auto_scale_lr'}


def apply_settings(cfg: Config, settings: Settings, given=(), loaders=LOADERS):
    """Apply settings to a config, with everything that depends on them, and log the changes.

    The user also sets the ``given`` dotted keys with ``--cfg-options``: a learning rate among them is not scaled. The
    ``loaders`` get another image size; the batch size is that of the first. `ConfigError` if a value is out of range,
    the config has nothing that a setting could change, or a setting would change a given key.
    """
    before = copies_of(cfg, PARTS)
    if settings.image_size is not None:
        set_image_size(cfg, settings.image_size, loaders)
    if settings.batch_size is not None:
        _set_batch_size(cfg, settings, given, loaders[0])
    for unit in ('epochs', 'iterations'):  # an epoch has fewer iterations of larger batches
        if getattr(settings, unit) is not None:
            set_length(cfg, getattr(settings, unit), unit)
    if settings.lr is not None:
        _set_lr(cfg, settings)
    if settings.workers is not None:
        _set_workers(cfg, settings.workers)
    if settings.canvas is not None:
        _set_canvas(cfg, settings.canvas)
    changed = [key for key, *_ in _all_changes(before, cfg)]
    if twice := [key for key in given if concerns(key, changed)]:
        raise ConfigError(f'{", ".join(twice)}: set by --cfg-options and by {", ".join(_options_of(settings))}. Omit '
                          'one of them')
    if settings.augment is not None:
        set_augmentation(cfg, settings.augment)
    options, changed = _options_of(settings), _all_changes(before, cfg)
    if options and is_first_of_any_launcher():  # the others make the same changes
        width = max((len(key) for key, *_ in changed), default=0)
        lines = ''.join(f'\n  {key:<{width}}  {old} -> {new}' for key, old, new in changed)
        print_log(f'{", ".join(options)}:{lines or " nothing changes, the config has this already"}', logger='current')


def _options_of(settings):
    """Return the settings that the user set, as options with their values."""
    return [' '.join(map(str, [option, *(value if isinstance(value, (list, tuple)) else [value])]))
            for option, value in settings.options.items()]


def _all_changes(before, cfg):
    return [(key, _short(old), _short(new)) for name in PARTS if name in cfg
            for key, old, new in changes(before.get(name), cfg[name], name, by_type=True)]


def _short(value):
    """Return a value as text; of a pipeline only the types of its steps, as the dumped config has the rest."""
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, dict) for part in value):
        return ', '.join(str(part.get('type')) for part in value)
    if isinstance(value, dict) and 'pipeline' in value:
        return f'{value["type"]}: {_short(value["pipeline"])}'
    if isinstance(value, float):
        return f'{value:g}'
    return 'not set' if value is None else shown(value)


def _set_batch_size(cfg, settings, given, name):
    """Change the batch size of a loader, and for that of the training scale the learning rate unless the user sets it.
    """
    size, loader = settings.batch_size, cfg.get(name) or {}
    if not isinstance(size, int) or size < 1:
        raise ConfigError(f'--batch-size must be a whole number of at least 1, got {size}')
    before = loader.get('batch_size')
    if not before:
        raise ConfigError(f'--batch-size: {name} has no batch_size. Set it in what makes the batches, such as '
                          f'--cfg-options {name}.batch_sampler.batch_size=N')
    loader['batch_size'] = size
    scale = cfg.get('auto_scale_lr') or {}
    fixed = settings.lr is not None or any(key.startswith('optim_wrapper.') and key.endswith('.lr') for key in given)
    if name != LOADERS[0] or fixed or settings.auto_scale_lr or scale.get('enable'):
        return
    steps = value_at(cfg, ACCUMULATED) or 1
    own = own_keys(cfg) if steps > 1 else ()
    # a rate or a batch in the file that accumulates is for that; those of a recipe are not
    new = ACCUMULATED in given or ACCUMULATED in own and not any(
        concerns(key, own) for key in ('optim_wrapper.optimizer.lr', 'train_dataloader.batch_size'))
    factor = size * (steps if new else 1) / before
    if factor == 1:
        return
    for optimizer in _optimizers(cfg):
        optimizer['lr'] *= factor
    _scale_ends(cfg, factor)
    if scale.get('base_batch_size'):
        scale['base_batch_size'] = max(round(scale['base_batch_size'] * factor), 1)  # the rate is for this size now


def _set_lr(cfg, settings):
    """Change the learning rate; the rates of parts of the model keep their factors."""
    lr, optimizers = settings.lr, _optimizers(cfg)
    if not isinstance(lr, (int, float)) or not 0 < lr < float('inf'):
        raise ConfigError(f'--lr must be a number above 0, got {lr}')
    if settings.auto_scale_lr:
        raise ConfigError(f'--lr {lr:g} is used as it is, but --auto-scale-lr would scale it. Omit one of them')
    if len(optimizers) != 1:
        raise ConfigError(f'--lr: the config has {len(optimizers)} optimizers with a learning rate. Set '
                          'optim_wrapper.NAME.optimizer.lr of each with --cfg-options' if optimizers else
                          '--lr: the optimizer of this config has no learning rate (optim_wrapper.optimizer.lr)')
    before, optimizers[0]['lr'] = optimizers[0]['lr'], lr
    if before:
        _scale_ends(cfg, lr / before)
    if (cfg.get('auto_scale_lr') or {}).get('enable'):
        cfg.auto_scale_lr.enable = False


def _optimizers(cfg):
    """Return the optimizers that have a learning rate."""
    return [node for node in dicts_in(cfg.get('optim_wrapper') or {}) if 'type' in node
            and isinstance(node.get('lr'), (int, float))]


def _scale_ends(cfg, factor):
    """Scale the values that schedulers of learning rates give as rates, not as factors."""
    for _, part in schedulers(cfg.get('param_scheduler'), 'param_scheduler'):
        if part.get('param_name', 'lr') == 'lr' and not str(part['type']).endswith('Momentum'):
            for key in ('eta_min', 'eta_max'):
                if isinstance(part.get(key), (int, float)):
                    part[key] *= factor


def _set_canvas(cfg, canvas):
    """Pad the batches of a detector in training, by `xcit_dense.for_mmdet.BatchCanvasPad`."""
    preprocessor = cfg.model.get('data_preprocessor') or cfg.get('data_preprocessor') or {}
    if task_of(cfg).framework != 'mmdet' or 'type' not in preprocessor:
        raise ConfigError('--canvas pads the batches of a detector (model.data_preprocessor); segmentation and '
                          'classification train on crops of one size')
    if (box := box_of(cfg)) and max(box) > max(canvas):
        raise ConfigError(f'--canvas must hold the images of this config, which have up to {box[0]} x {box[1]} pixels')
    divisor = preprocessor.get('pad_size_divisor', 1)
    custom = cfg.setdefault('custom_imports', dict(imports=[], allow_failed_imports=False))
    names = custom['imports'] if isinstance(custom['imports'], (list, tuple)) else [custom['imports']]
    custom['imports'] = [*dict.fromkeys([*names, _CANVAS_MODULE])]
    import_module(_CANVAS_MODULE)
    others = [step for step in preprocessor.get('batch_augments') or ()
              if type_name(step.get('type')) not in ('BatchCanvasPad', 'BatchFixedSizePad')]
    options = {key: preprocessor[key] for key in ('pad_mask', 'mask_pad_value', 'pad_seg', 'seg_pad_value')
               if key in preprocessor}
    size = tuple(-(-side // divisor) * divisor for side in canvas)  # batches are padded to its multiples before
    preprocessor['batch_augments'] = [*others, dict(type='BatchCanvasPad', size=size, **options)]


def _set_workers(cfg, workers):
    """Change the number of worker processes of all loaders."""
    if not isinstance(workers, int) or workers < 0:
        raise ConfigError('--workers must be a whole number of at least 0 (0: the main process reads the data), got '
                          f'{workers}')
    for loader in filter(None, map(cfg.get, LOADERS)):
        if not loader.get('num_workers'):
            loader['persistent_workers'] = workers > 0
        loader['num_workers'] = workers
    drop_settings_of_workers(cfg)


def drop_settings_of_workers(cfg: Config):
    """Undo the settings of worker processes in loaders without any, where torch rejects them."""
    for loader in map(cfg.get, LOADERS):
        if isinstance(loader, dict) and loader.get('num_workers') == 0:
            loader.pop('prefetch_factor', None)
            if loader.get('persistent_workers'):
                loader['persistent_workers'] = False
