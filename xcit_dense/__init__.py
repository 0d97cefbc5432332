"""XCiT for dense prediction and classification in OpenMMLab. Importing the package registers its models."""
import os
import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ._utils.interrupts import stop_quietly


def _is_command_line():
    """Whether this process is a tool of the package, which shows its help before it loads torch and the frameworks."""
    main = sys.modules.get('__main__')
    file = getattr(main, '__file__', None)
    if file is None:  # python -m imports a package before its __main__
        return sys.argv[:1] == ['-m'] and re.search(r' -\w*m xcit_dense ', ' '.join([*sys.orig_argv, ''])) is not None
    # the files in tools/ set the variable; pip writes the command
    return getattr(main, 'IS_TOOL_OF_XCIT_DENSE', False) or os.path.basename(file) in ('xcit-dense', 'xcit-dense.exe')


if _is_command_line():
    stop_quietly()  # until `xcit_dense.cli.common.run_tool` has imported everything

if TYPE_CHECKING:
    from .interface import (
        Arch,
        ReferenceXCiT,
        XCABlock,
        XCiT,
        XCiTClassifier,
        arch_names,
        attention_maps,
        export_model,
        get_arch,
        get_config,
        list_models,
        load,
        principal_components,
        set_fast,
    )

__version__ = '0.1.0'

__all__ = [
    'Arch', 'ReferenceXCiT', 'XCABlock', 'XCiT', 'XCiTClassifier', 'arch_names', 'attention_maps', 'export_model',
    'get_arch', 'get_config', 'list_models', 'load', 'principal_components', 'set_fast'
]


def __getattr__(name):
    if name in __all__:
        from . import interface
        return getattr(interface, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


def __dir__():
    return [*__all__, '__version__']


# without torch only the runtime works, and any other name reports what is missing
if not _is_command_line() and find_spec('torch') is not None:
    from . import interface  # noqa: F401
