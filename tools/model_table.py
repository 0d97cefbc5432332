"""Renew the model table of the README, the metafiles and model-index.yml from archs.py, zoo.py and the configs."""
import argparse
import sys
from pathlib import Path

from xcit_dense.cli import common as cli
from xcit_dense.engine.model_table import make_files


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing; exit with 1 if a file is not up to date')
    return parser.parse_args()


def main():
    args = parse_args()
    root = Path(__file__).parents[1]
    stale = {path: text for path, text in make_files(root).items() if not path.is_file() or path.read_text() != text}
    for path, text in stale.items():
        print(f'{"not up to date" if args.check else "wrote"}: {path.relative_to(root)}')
        if not args.check:
            path.write_text(text)
    if args.check and stale:
        sys.exit('error: run python tools/model_table.py')


if __name__ == '__main__':
    cli.run(main)
