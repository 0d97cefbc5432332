"""Convert XCiT weights between layouts (the authors', dense models, timm, mmpretrain), or describe a file.

    python -m xcit_dense convert_checkpoint work_dirs/mine backbone.pth --to dense
    python -m xcit_dense convert_checkpoint xcit://small_12_p16_224 --inspect

The layout of IN is recognised, including PASSL's .pdparams and wrapped weights (data parallel, averages). One model is
taken out of a file that holds several (distillation, DINO, EMA).
"""
from .common import Parser, add_shared, run_tool


def main(argv=None):
    parser = Parser(description=__doc__)
    parser.add_argument('source', metavar='IN', help='a path, a URL, a work dir (its best checkpoint), or '
                        'xcit://NAME from docs/models.md')
    parser.add_argument('out', nargs='?', metavar='OUT', help='file to write: .pth, .pt, .bin or .safetensors')
    parser.add_argument('--to', choices=('dense', 'official', 'timm', 'mmpretrain'), metavar='LAYOUT',
                        help='layout of OUT: dense, official, timm or mmpretrain')
    parser.add_argument('--which', metavar='NAME', help='the model to convert if IN holds several: student, teacher, '
                        'ema (the average of the weights), or a key of the file; --inspect lists them. Default: the '
                        'evaluated one, of DINO the teacher, and of PASSL the student')
    parser.add_argument('--inspect', action='store_true', help='describe IN and write nothing')
    add_shared(parser, 'overwrite')
    args = parser.parse_args(argv)
    complete = not (args.out or args.to or args.which) if args.inspect else args.out and args.to
    if not complete:
        parser.error('give either IN OUT --to LAYOUT or IN --inspect')
    run_tool(_run, args)


def _run(args):
    from ..weights.convert import convert, inspect
    print('\n'.join(inspect(args.source) if args.inspect else
                    convert(args.source, args.out, args.to, args.which, args.overwrite)))
