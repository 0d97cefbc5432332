"""Replace the backbone of a config of mmdet or mmsegmentation by XCiT: write a config with the lines to change.

    python -m xcit_dense adapt mmdet::atss/atss_r50_fpn_1x_coco.py --out mine.py
"""
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from ..errors import DataError, OutputError
from .common import Parser, run_tool


def main(argv=None):
    parser = Parser(description=__doc__, epilog='Then `train mine.py`. The model is built, predicts and trains for a '
                    'step before anything is written.')
    parser.add_argument('config', metavar='CONFIG', help='a config file, or mmdet::NAME or mmseg::NAME for a stock '
                        'config of the installed framework')
    parser.add_argument('--arch', default='small_12_p16', metavar='ARCH', help='size, depth and patch of XCiT, such as '
                        'nano_12_p16 (default: %(default)s)')
    parser.add_argument('--out', metavar='FILE', help='write the config into this new file instead of printing it')
    parser.add_argument('--data-root', metavar='DIR', help='your own data, which you will train on: the config reads '
                        'its classes from the data')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from .._utils.files import atomic_write
    from ..config.adapt import adapt
    path = args.out and Path(args.out).expanduser()
    if path and os.path.lexists(path):
        raise OutputError(f'{path} already exists: give another name')
    if args.data_root and not os.path.isdir(args.data_root):
        raise DataError(f'there is no folder {args.data_root}: --data-root is that of your data')
    with redirect_stdout(sys.stderr):  # findings, as the config may be piped into a file
        text = adapt(args.config, args.arch, path) + 'classes_from_data = True\n' * (args.data_root is not None)
    if not path:
        print(text, end='')
        return
    with atomic_write(path) as part:
        part.write_text(text)
    print(f'wrote {path}. Pass it to train as CONFIG' + f', with --data-root {args.data_root}' * bool(args.data_root))
