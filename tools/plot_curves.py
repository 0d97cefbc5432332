"""Plot the loss and metric curves of a training run."""
import argparse

from xcit_dense.cli import common as cli
from xcit_dense.train.curves import plot_curves


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('work_dir', metavar='WORK_DIR', help='the --work-dir of the run')
    parser.add_argument('--out', metavar='FILE', help='the picture (default: WORK_DIR/curves.png)')
    return parser.parse_args()


def main():
    args = parse_args()
    print(f'wrote {plot_curves(args.work_dir, args.out)}')


if __name__ == '__main__':
    cli.run(main)
