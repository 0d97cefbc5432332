"""Plot the loss and metric curves of a training run.

    python -m xcit_dense plot_curves work_dirs/mine
"""
from .common import Parser, add_shared, run_tool


def main(argv=None):
    parser = Parser(description=__doc__)
    parser.add_argument('work_dir', metavar='WORK_DIR', help='the --work-dir of the run')
    parser.add_argument('--out', metavar='FILE', help='image file to write (default: WORK_DIR/curves.png)')
    add_shared(parser, 'overwrite')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from ..report.curves import plot_curves
    print(f'wrote {plot_curves(args.work_dir, args.out, args.overwrite)}')
