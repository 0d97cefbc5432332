"""Make a small data set, textured scenes with overlapping objects of five classes, in COCO's and ADE20k's layout."""
import argparse

from xcit_dense.cli import common as cli
from xcit_dense.data.demo import make_demo_data


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument('out', metavar='DIR', help='folder to write; give it to the other tools as --data-root')
    parser.add_argument('--train', type=int, default=480, metavar='N', help='training images')
    parser.add_argument('--val', type=int, default=80, metavar='N', help='validation images')
    parser.add_argument('--size', type=int, default=192, metavar='PIXELS', help='longer side of an image')
    parser.add_argument('--seed', type=int, default=0, help='the same seed gives the same files')
    return parser.parse_args()


def main():
    args = parse_args()
    make_demo_data(args.out, args.train, args.val, args.size, args.seed)
    print(f'{args.train} training and {args.val} validation images in {args.out}')


if __name__ == '__main__':
    cli.run(main)
