"""Convert XCiT weights between the authors' files, dense models, timm and mmpretrain, or say what a file is.

Every layout is recognised by itself, PASSL's .pdparams and wrapped weights (DINO, EMA, data parallel) too.
"""
import argparse

from .common import add_overwrite_option, check_choices, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; ends as `run_tool` says."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('source', metavar='IN', help='a path, an address, a work dir (its newest checkpoint), or '
                        'xcit://NAME of the published files')
    parser.add_argument('out', nargs='?', metavar='OUT', help='file to write: .pth or .safetensors')
    parser.add_argument('--to', metavar='LAYOUT', help='layout of OUT: dense, official, timm or mmpretrain')
    parser.add_argument('--which', metavar='NAME', help='container of the model in a file with several, such as '
                        'teacher, student or ema_state_dict; --inspect lists them')
    parser.add_argument('--inspect', action='store_true', help='say what IN is, and write nothing')
    add_overwrite_option(parser)
    args = parser.parse_args(argv)
    complete = not (args.out or args.to or args.which) if args.inspect else args.out and args.to
    if not complete:
        parser.error('give either IN OUT --to LAYOUT, or IN --inspect')
    return args


def _run(args):
    from ..weights.convert import TARGETS, convert, inspect
    check_choices('--to', [args.to] if args.to else [], TARGETS)
    print('\n'.join(inspect(args.source) if args.inspect else
                    convert(args.source, args.out, args.to, args.which, args.overwrite)))
