"""Which framework a config is for."""
from mmengine.registry import MODELS

from .check.keys import class_of

_FRAMEWORKS = ('mmdet', 'mmseg', 'mmpretrain')


def framework_of(cfg):
    """Return the framework that a config's model class, or a base of it, is from: mmdet, mmseg or mmpretrain.

    For other models return the default scope. Pure-Python configs have no default scope, but use names that the
    framework registers.
    """
    scope = cfg.get('default_scope')
    model = cfg.get('model')
    kind = class_of(model['type'], MODELS, scope) if isinstance(model, dict) and 'type' in model else None
    packages = [base.__module__.partition('.')[0] for base in getattr(kind, '__mro__', ())]
    return next((package for package in packages if package in _FRAMEWORKS), scope)
