"""XCiT for dense prediction in OpenMMLab. Importing the package registers the backbone."""
import re
import sys
from pathlib import Path

from .compat.moved import install_old_paths

__version__ = '0.1.0'

__all__ = [
    'Arch', 'ReferenceXCiT', 'XCABlock', 'XCiT', 'arch_names', 'get_arch', 'get_config', 'list_models', 'set_fast'
]


def _is_command_line():
    """Whether this process is a tool of the package, which shows its help before it loads torch and the frameworks."""
    file = getattr(sys.modules['__main__'], '__file__', None)
    if file is None:  # python -m imports a package before its __main__
        return sys.argv[:1] == ['-m'] and re.search(r' -\w*m xcit_dense ', ' '.join([*sys.orig_argv, ''])) is not None
    file, here = Path(file), Path(__file__).resolve().parent
    return file.stem == 'xcit-dense' or file.resolve().parent in (here.parent / 'tools', here / '.mim/tools')


def __getattr__(name):
    if name in __all__:
        from . import interface
        return getattr(interface, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')


install_old_paths()
if not _is_command_line():
    from . import interface  # noqa: F401
