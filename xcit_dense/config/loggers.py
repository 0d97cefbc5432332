"""Log to TensorBoard, Weights & Biases and MLflow too. Imports nothing slow: `check_loggers` comes first of all."""
import os
from importlib.util import find_spec

from ..errors import SetupError

#: By the name of a logger: the packages that it needs.
LOGGERS = dict(tensorboard=('tensorboard', ), wandb=('wandb', ), mlflow=('mlflow', ))
#: What MLflow needs to log into a local file; the package mlflow-skinny, for servers, comes without them.
_LOCAL = ('sqlalchemy', 'alembic')


def check_loggers(names):
    """Check that the packages of loggers are installed.

    Raises:
        SetupError: A package is missing.
    """
    missing = [name for name in dict.fromkeys(names) if not all(map(_is_installed, _needed(name)))]
    if missing:
        raise SetupError(f'--log {" ".join(missing)} needs {"a package" if len(missing) == 1 else "packages"} that '
                         f'{"is" if len(missing) == 1 else "are"} not installed: pip install {" ".join(missing)}')


def set_loggers(cfg, names):
    """Log to some of `LOGGERS` as well, as ``--log`` asks; see `xcit_dense.report.loggers_hook.LoggersHook`."""
    others = [hook for hook in cfg.get('custom_hooks') or [] if hook.get('type') != 'LoggersHook']
    cfg.custom_hooks = [*others, dict(type='LoggersHook', loggers=list(dict.fromkeys(names)))]


def _needed(name):
    local = name == 'mlflow' and not os.environ.get('MLFLOW_TRACKING_URI')
    return LOGGERS[name] + (_LOCAL if local else ())


def _is_installed(package):
    """Whether a package can be imported; a folder of this name without code, such as ``./wandb``, is none."""
    spec = find_spec(package)
    return spec is not None and spec.origin is not None
