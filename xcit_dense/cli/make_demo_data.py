"""Make a small data set of five classes: scenes in COCO's and ADE20k's layout, and pictures in class folders."""
import argparse

from .common import run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; ends as `run_tool` says."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('out', metavar='DIR', help='folder to write; give it to the other tools as --data-root')
    parser.add_argument('--train', type=int, default=480, metavar='N',
                        help='training images, and half as many pictures of each class')
    parser.add_argument('--val', type=int, default=80, metavar='N', help='validation images, likewise')
    parser.add_argument('--size', type=int, default=192, metavar='PIXELS',
                        help='longer side of an image; pictures have half of it')
    parser.add_argument('--seed', type=int, default=0, help='the same seed gives the same files')
    parser.add_argument('--classes', nargs='+', metavar='NAME', help='some of the classes, without the others')
    return parser.parse_args(argv)


def _run(args):
    from ..data.demo import CLASSES, make_demo_data
    make_demo_data(args.out, args.train, args.val, args.size, args.seed, args.classes or CLASSES)
    print(f'{args.train} training and {args.val} validation images in {args.out}; pictures of one object each in class '
          'folders in classes/train and classes/val')
