"""Draw the predictions of a checkpoint on images; write COCO results (detection) or label maps (segmentation)."""

from .common import Parser, add_config_options, add_image_size_option, add_overwrite_option, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; ends as `run_tool` says."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = Parser(description=__doc__)
    add_config_options(parser, checkpoint=True)
    parser.add_argument('images', metavar='IMAGE_OR_FOLDER', help='an image, or a folder with images at any depth')
    parser.add_argument('--out', required=True, metavar='DIR',
                        help='gets one picture an image, results.json (detection) or labels/*.png (segmentation), and '
                        'classes.json')
    parser.add_argument('--score-thr', type=float, default=0.3, metavar='SCORE',
                        help='detection: draw objects from this score up (default: 0.3); results.json holds all')
    add_image_size_option(parser)
    add_overwrite_option(parser)
    return parser.parse_args(argv)


def _run(args):
    from ..config.loading import load_config
    from ..config.settings import Settings
    from ..data.datasets import find_images
    from ..predict.files import predict_files
    from ..predict.predictor import build_predictor
    cfg = load_config(args.config, cfg_options=args.cfg_options, settings=Settings(image_size=args.image_size),
                      tested=True, pretrained=False)
    root, paths = find_images(args.images)
    predictor = build_predictor(cfg, args.checkpoint, args.score_thr)
    print(predict_files(predictor, root, paths, args.out, args.overwrite))
