"""``python -m xcit_dense TOOL ...`` runs a tool of the project from any folder, installed or not."""
import runpy
import sys

from .catalog import package_root

tools = {path.stem: path for path in sorted((package_root() / 'tools').glob('*.py'))}
if len(sys.argv) < 2 or sys.argv[1] not in tools:
    sys.exit(f'usage: python -m xcit_dense TOOL ...\n  with one of the tools {", ".join(tools)}; TOOL --help says more')
runpy.run_path(str(tools[sys.argv.pop(1)]), run_name='__main__')
