"""Measure time and memory of XCiT, the authors' form of it and other backbones on this machine."""
import sys
from importlib import import_module
from pathlib import Path


def main(argv=None, module: str = 'tool'):
    """Run a module of the folder `benchmarks` of the repository: next to the package, or in the current folder."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (root / f'benchmarks/{module}.py').exists():
            sys.path.insert(0, str(root))
            return import_module(f'benchmarks.{module}').main(argv)
    sys.exit('error: the benchmarks are in the repository, not in the installed package: clone it, and run this '
             'command in its folder')
