"""Convert XCiT weights between the authors' files, dense models, timm and mmpretrain, or say what a file is.

Every layout is recognised by itself, PASSL's .pdparams and wrapped weights (DINO, EMA, data parallel) too.
"""
import argparse

from xcit_dense.cli import common as cli
from xcit_dense.weights.convert import TARGETS, convert, inspect


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source', metavar='IN', help='a path, an address, a work dir (its newest checkpoint), or '
                        'xcit://NAME of the published files')
    parser.add_argument('out', nargs='?', metavar='OUT', help='file to write: .pth or .safetensors')
    parser.add_argument('--to', choices=TARGETS, help='layout of OUT')
    parser.add_argument('--which', metavar='NAME', help='container of the model in a file with several, such as '
                        'teacher, student or ema_state_dict; --inspect lists them')
    parser.add_argument('--inspect', action='store_true', help='say what IN is, and write nothing')
    args = parser.parse_args()
    complete = not (args.out or args.to or args.which) if args.inspect else args.out and args.to
    if not complete:
        parser.error('give either IN OUT --to LAYOUT, or IN --inspect')
    return args


def main():
    args = parse_args()
    print('\n'.join(inspect(args.source) if args.inspect else convert(args.source, args.out, args.to, args.which)))


if __name__ == '__main__':
    cli.run(main)
