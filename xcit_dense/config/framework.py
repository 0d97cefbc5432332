"""Which framework a config is for."""
from mmengine.registry import MODELS

from .check.keys import class_of

_FRAMEWORKS = ('mmdet', 'mmseg', 'mmpretrain')


def framework_of(cfg):
    """Return mmdet, mmseg or mmpretrain, whose model a config has or one derived from it; else its scope.

    Pure-Python configs have no scope, and parts of them still ask for names of the framework.
    """
    scope = cfg.get('default_scope')
    model = cfg.get('model')
    kind = class_of(model['type'], MODELS, scope) if isinstance(model, dict) and 'type' in model else None
    packages = [base.__module__.partition('.')[0] for base in getattr(kind, '__mro__', ())]
    return next((package for package in packages if package in _FRAMEWORKS), scope)
