"""``python -m xcit_dense TOOL ...`` runs a tool of the project from any folder, installed or not."""
import ast
import difflib
import runpy
import sys

from .config.catalog import package_root


def _describe(tools):
    width = max(map(len, tools))
    lines = (f'  {name:<{width}}  {ast.get_docstring(ast.parse(path.read_text())).splitlines()[0]}'
             for name, path in tools.items())
    return '\n'.join(['usage: python -m xcit_dense TOOL ...', '', *lines, '', 'TOOL --help says more.'])


tools = {path.stem: path for path in sorted((package_root() / 'tools').glob('*.py'))}
name = sys.argv.pop(1) if len(sys.argv) > 1 else None
if name in ('-h', '--help'):
    print(_describe(tools))
elif name is None:
    sys.exit(_describe(tools))
elif name not in tools:
    meant = difflib.get_close_matches(name, tools, n=1)
    sys.exit(f'error: there is no tool {name}; ' + (f'did you mean {meant[0]}?' if meant else
                                                    f'there are {", ".join(tools)}'))
else:
    runpy.run_path(str(tools[name]), run_name='__main__')
