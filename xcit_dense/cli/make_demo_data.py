"""Generate a small data set of five classes: scenes in COCO's and ADE20k's layout, and objects in class folders.

    python -m xcit_dense make_demo_data data/demo
"""
from .common import Parser, run_tool


def main(argv=None):
    parser = Parser(description=__doc__)
    parser.add_argument('out', metavar='DIR', help='folder to write; give it to the other tools as --data-root')
    parser.add_argument('--train', type=int, default=480, metavar='N',
                        help='training scenes; each class folder gets half that number (default: 480)')
    parser.add_argument('--val', type=int, default=80, metavar='N',
                        help='validation scenes; each class folder gets half that number (default: 80)')
    parser.add_argument('--size', type=int, default=192, metavar='PIXELS',
                        help='longer side of a scene; images in class folders have half of it (default: 192)')
    parser.add_argument('--seed', type=int, default=0, metavar='N',
                        help='the same seed gives the same files (default: 0)')
    parser.add_argument('--classes', nargs='+', metavar='NAME', help='use only these classes (default: all five)')
    parser.add_argument('--grey', action='store_true', help='grey images with equal histograms, and single '
                        'objects with nothing behind them, to learn from without labels')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from ..data.demo import CLASSES, make_demo_data
    make_demo_data(args.out, args.train, args.val, args.size, args.seed, args.classes or CLASSES, args.grey)
    print(f'wrote {args.train} training and {args.val} validation images to {args.out}; images of single objects are '
          'in the class folders of classes/train and classes/val')
