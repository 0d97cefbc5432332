"""The operators of mmcv that mmdet and mmsegmentation call, for mmcv without compiled ones.

mmcv looks up its ops by name in one module, ``mmcv._ext``. mmcv-lite lacks this module, and so does a fork that pip
built from source without torch. mmcv_boxes.py and mmcv_layers.py have the same arithmetic.
"""
import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import torch

from ..errors import SetupError
from . import mmcv_boxes, mmcv_layers
from .versions import reinstall_mmcv

_NAME = 'mmcv._ext'


def install_stand_in():
    """Provide the module ``mmcv._ext`` if the installed mmcv has none.

    Raises:
        SetupError: The compiled ops of mmcv or of torchvision do not load: they were built for another torch version.
    """
    if _NAME in sys.modules:
        return
    if importlib.util.find_spec(_NAME) is None:
        _load_torchvision()
        module = _StandIn(_NAME, __doc__)
        module.__spec__ = importlib.machinery.ModuleSpec(_NAME, loader=None)
        sys.modules[_NAME] = module
        return
    try:
        importlib.import_module(_NAME)
    except ImportError as error:
        raise SetupError(
            f"mmcv's compiled ops do not load with torch {torch.__version__}: {error}. They were built for another "
            f'torch version. Fix it with: {reinstall_mmcv(compiled=False)} (no compiler needed), or rebuild them: '
            f'{reinstall_mmcv(compiled=True)}') from error


def _load_torchvision():
    """Load torchvision's libraries of compiled ops; its Python code, which takes over a second to import, can wait."""
    try:
        spec = importlib.util.find_spec('torchvision')
        libraries = [*Path(spec.origin).parent.glob('_C*')] if spec else []  # one or two, by the version
        for library in libraries:
            torch.ops.load_library(library)
        if not libraries:
            importlib.import_module('torchvision')
        torch.ops.torchvision.nms  # noqa: B018 (the look-up raises)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise SetupError(f"torchvision's compiled ops do not load with torch {torch.__version__}: {error}. Install the "
                         'matching pair: pip install --upgrade torch torchvision') from error


class _StandIn(ModuleType):
    """A module with those operators, and for every other name a function that raises when it is called.

    mmcv looks up all its ops when it is imported, so a missing op must fail only when it is called.
    """

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        if name.startswith('get_compil'):  # versions of compiler and CUDA
            return lambda: 'none (ops of torchvision through xcit_dense)'

        def missing(*args, **kwargs):
            raise NotImplementedError(
                f"mmcv is installed without its compiled ops, and xcit_dense has those that configs of mmdet and "
                f"mmsegmentation need, not '{name}', which none of them calls. Install mmcv with all ops, which are "
                f'compiled: {reinstall_mmcv(compiled=True)}')

        return getattr(mmcv_boxes, name, None) or getattr(mmcv_layers, name, missing)
