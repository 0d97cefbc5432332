"""XCiT for dense prediction and classification in OpenMMLab. Importing the package registers its models."""
import os
import re
import signal
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING


def _is_command_line():
    """Whether this process is a tool of the package, which shows its help before it loads torch and the frameworks."""
    main = sys.modules.get('__main__')
    file = getattr(main, '__file__', None)
    if file is None:  # python -m imports a package before its __main__
        return sys.argv[:1] == ['-m'] and re.search(r' -\w*m xcit_dense ', ' '.join([*sys.orig_argv, ''])) is not None
    # the files in tools/ set the variable; pip writes the command
    return getattr(main, 'IS_TOOL_OF_XCIT_DENSE', False) or os.path.basename(file) in ('xcit-dense', 'xcit-dense.exe')


def _stop_quietly(number, _):
    """End the process on Ctrl-C; during imports, Python's own handler would print tracebacks, or not end it."""
    os.write(2, b'stopped\n')
    os._exit(128 + number)


def _exit(number, _):
    signal.signal(number, signal.SIG_IGN)  # a second one must not stop the clean-up
    sys.exit(128 + number)


def stop_as_usual():
    """Let Ctrl-C raise `KeyboardInterrupt` again, and SIGTERM `SystemExit`, once a tool may have to save."""
    if signal.getsignal(signal.SIGINT) is _stop_quietly:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # one of several processes may wait in a collective for ever, where no handler runs: it ends at once
    if _IS_TOOL and 'RANK' not in os.environ and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _exit)


_IS_TOOL = _is_command_line()
# with OpenMP of GNU, threads that wait spin for less long: beside other programs an iteration takes 1 s instead of 15
if _IS_TOOL and 'OMP_WAIT_POLICY' not in os.environ:
    os.environ.setdefault('GOMP_SPINCOUNT', '10000')
if _IS_TOOL and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _stop_quietly)  # until `xcit_dense.cli.common.run_tool` has imported everything

if TYPE_CHECKING:
    from .archs import Arch, arch_names, get_arch
    from .config.loading import get_config, list_models
    from .export.exporting import export_model
    from .models import ReferenceXCiT, XCABlock, XCiT, XCiTClassifier, attention_maps, set_fast
    from .predict.attention import principal_components
    from .predict.load import load

__version__ = '0.1.0'

__all__ = [
    'Arch', 'ReferenceXCiT', 'XCABlock', 'XCiT', 'XCiTClassifier', 'arch_names', 'attention_maps', 'export_model',
    'get_arch', 'get_config', 'list_models', 'load', 'principal_components', 'set_fast'
]
#: The modules with these names, and those with hooks, loops and steps that configs name.
_PUBLIC = ('models', 'archs', 'config.loading', 'export.exporting', 'predict.attention', 'predict.load')
_REGISTERED = ('train', 'report.hooks', 'report.ending', 'predict.drawing', 'predict.models')


@cache
def register():
    """Check the frameworks, and import everything that configs name."""
    from .compat import prepare
    prepare()  # before anything imports torch or mmcv's ops
    for module in (*_PUBLIC, *_REGISTERED):
        import_module(f'.{module}', __name__)


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    register()
    modules = (import_module(f'.{module}', __name__) for module in _PUBLIC)
    return next(getattr(module, name) for module in modules if hasattr(module, name))


def __dir__():
    return [*__all__, '__version__']


# without torch only the runtime works, and any other name reports what is missing
if not _is_command_line() and find_spec('torch') is not None:
    register()
