"""Which configs there are, by name, in a checkout and in an installed package alike."""
from pathlib import Path

from ..errors import ConfigError
from ..text import nearest


def configs_folder() -> Path:
    """Return the folder of the configs: in ``.mim`` of an installed package, or in the checkout."""
    package = Path(__file__).parents[1]
    installed = package / '.mim/configs'
    return installed if installed.is_dir() else package.parent / 'configs'


def list_models() -> list:
    """Return the names of all configs, such as ``'maskrcnn_xcit_s12_p8_coco'``."""
    return sorted(path.stem for path in configs_folder().glob('*.py'))


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
        return configs_folder() / f'{stem}.py'
    near = nearest(stem, [p.stem for p in path.parent.glob('*.py')] + names, 3)
    raise ConfigError(f'there is no config {name}'
                      + (f'; did you mean {" or ".join(near)}?' if near else
                         '; xcit_dense.list_models() names those of this package'))
