"""Print the lines that put XCiT in the place of the backbone of a config of mmdet or mmsegmentation."""
from .common import Parser, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; exits as `run_tool` describes."""
    parser = Parser(description=__doc__, epilog='The lines are a whole config, which builds on the other one: '
                    '`adapt mmdet::atss/atss_r50_fpn_1x_coco.py > mine.py`, then `train mine.py`. The model was built '
                    'and has predicted once before they are printed.')
    parser.add_argument('config', metavar='CONFIG', help='a config file, or mmdet::NAME or mmseg::NAME for a stock '
                        'config of the installed framework')
    parser.add_argument('--arch', default='small_12_p16', metavar='ARCH', help='size and patch of XCiT (default: '
                        '%(default)s)')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from ..config.adapt import adapt
    print(adapt(args.config, args.arch), end='')
