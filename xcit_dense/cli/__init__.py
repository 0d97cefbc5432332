"""The command line: a module with ``main(argv=None)`` for each tool; it exits as `run_tool` of `common` describes.

``python -m xcit_dense TOOL``, ``xcit-dense TOOL`` and ``python tools/TOOL.py`` are the same.
"""
import sys
from importlib import import_module
from pathlib import Path

from .._utils.files import folder_of
from .._utils.text import did_you_mean


def tool_names() -> list:
    """Return the names of all tools."""
    return sorted(path.stem for path in Path(__file__).parent.glob('*.py') if path.stem not in ('__init__', 'common'))


def main(argv=None):
    """Run the tool named by the first of some arguments, by default those of the process."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or [None]
    program = 'xcit-dense' if Path(sys.argv[0]).stem == 'xcit-dense' else 'python -m xcit_dense'
    if name in ('-h', '--help'):
        print(_describe(program))
    elif name is None:
        sys.exit(_describe(program))
    elif name not in tool_names():
        known = tool_names()
        sys.exit(f'error: there is no tool {name}'
                 + did_you_mean(name, known, otherwise=f'. The tools are {", ".join(known)}'))
    else:
        before, sys.argv = sys.argv, [f'{program} {name}', *rest]  # the name in its help
        try:
            import_module(f'{__name__}.{name}').main()
        finally:
            sys.argv = before


def _describe(program):
    width = max(map(len, tool_names()))
    lines = (f'  {name:<{width}}  {import_module(f"{__name__}.{name}").__doc__.splitlines()[0]}'
             for name in tool_names())
    return '\n'.join([f'usage: {program} TOOL ...', '', *lines, '',
                      f'{program} TOOL --help shows examples and the options of a tool.',
                      f'Configs: {folder_of("configs")}', f'Documentation: {folder_of("docs")}/index.md'])
