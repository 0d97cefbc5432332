"""Measure time and memory of XCiT, the authors' form of it and other backbones on this machine."""
import sys
from pathlib import Path


def main(argv=None):
    """Run `benchmarks/tool.py` of the repository: beside the package, or in the current folder."""
    for root in (Path(__file__).resolve().parents[2], Path.cwd()):
        if (root / 'benchmarks/tool.py').exists():
            sys.path.insert(0, str(root))
            from benchmarks import tool
            return tool.main(argv)
    sys.exit('error: the benchmarks are in the repository, not in the installed package: clone it, and run this '
             'command in its folder')
