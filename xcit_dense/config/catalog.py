"""Find configs by name, in a checkout and in an installed package."""
from pathlib import Path

from .._utils.text import did_you_mean
from ..errors import ConfigError

#: Suffixes of model files, which users pass as the config by mistake.
_OF_MODELS = '.pth', '.pt', '.onnx', '.safetensors'


def configs_folder() -> Path:
    """Return the folder of the configs: ``.mim/configs`` of an installed package, or ``configs`` of the checkout."""
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
        ConfigError: There is no such config (the message suggests similar names), or the file holds a model.
    """
    path = Path(name)
    if path.is_file():
        if path.suffix in _OF_MODELS:
            raise ConfigError(f'{name} is a model file, not a config. CONFIG comes first, then CHECKPOINT')
        return path
    names = list_models()
    stem = path.name.removesuffix('.py')
    if stem in names and path.parent in (Path('.'), Path('configs')):  # the path that the README writes
        return configs_folder() / f'{stem}.py'
    known = [p.stem for p in path.parent.glob('*.py')] + names
    raise ConfigError(f'there is no config {name}' + did_you_mean(
        stem, known, 3, '; xcit_dense.list_models() lists the configs of this package'))
