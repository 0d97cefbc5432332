"""Which configs there are, by name, in a checkout and in an installed package alike."""
from pathlib import Path

from ..errors import ConfigError
from ..text import nearest


def package_root() -> Path:
    """Return the folder that holds ``configs/`` and ``tools/``: ``.mim`` in the wheel, else the checkout."""
    installed = Path(__file__).parent / '.mim'
    return installed if installed.is_dir() else Path(__file__).parents[1]


def list_models() -> list:
    """Return the names of all configs, such as ``'maskrcnn_xcit_s12_p8_coco'``."""
    return sorted(path.stem for path in (package_root() / 'configs').glob('*.py'))


def find_config(name) -> Path:
    """Return the file of a config.

    Args:
        name: A path, or a name of `list_models` with or without ``.py``.

    Raises:
        ConfigError: There is none; the message names near ones.
    """
    path = Path(name)
    if path.is_file():
        return path
    names = list_models()
    stem = path.name.removesuffix('.py')
    if stem in names and path.parent in (Path('.'), Path('configs')):  # the path that the README writes
        return package_root() / 'configs' / f'{stem}.py'
    near = nearest(stem, [p.stem for p in path.parent.glob('*.py')] + names, 3)
    raise ConfigError(f'there is no config {name}'
                      + (f'; did you mean {" or ".join(near)}?' if near else
                         '; xcit_dense.list_models() names those of this package'))


def get_config(name, **options):
    """Return a config of this package.

    To build its model: ``init_default_scope(cfg.default_scope)``, then ``MODELS.build(cfg.model)``, both of
    ``mmengine.registry``.

    Args:
        name: As for `find_config`.
        **options: Those of `xcit_dense.config.loading.load_config`, such as ``pretrained=False``. Configs that take
            their classes from the data do so where ``data_root`` is given.

    Raises:
        ConfigError: There is no such config.
        DataError: The data does not say which classes it has.
        SetupError: Its framework is missing or of a wrong version.
    """
    from ..data.datasets import take_classes
    from .loading import load_config
    cfg = load_config(name, **options)
    if options.get('data_root'):
        take_classes(cfg)
    return cfg
