"""Draw the predictions of a checkpoint on images; write COCO results (detection) or label maps (segmentation)."""

from .common import Parser, add_config_options, add_image_size_option, add_overwrite_option, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; ends as `run_tool` says."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = Parser(description=__doc__)
    add_config_options(parser, checkpoint=True)
    parser.add_argument('images', metavar='IMAGES', help='an image, a folder with images at any depth, a video (.mp4, '
                        '.avi, .mov, .mkv, .webm), or a list (.txt): a path a line, from its folder or the working '
                        'one; lines that begin with # are comments')
    parser.add_argument('--out', required=True, metavar='DIR',
                        help='gets one picture an image, results.json (detection) or labels/*.png (segmentation), and '
                        'classes.json, which says what the numbers are; of a video another (.mp4), and results.json, '
                        'where image ids are the numbers of frames, from 0')
    parser.add_argument('--score-thr', type=float, default=0.3, metavar='SCORE',
                        help='detection: draw objects from this score up (default: 0.3); results.json holds all')
    parser.add_argument('--ids-from', metavar='FILE', help="detection: take the image ids from annotations in COCO's "
                        'format, by file name (default: those of the test data, if it has all the images, or else the '
                        'numbers that are the names of the files, or else 1, 2, 3 and so on)')
    parser.add_argument('--frame-labels', action='store_true', help='segmentation of a video: write the label map of '
                        'each frame, too')
    add_image_size_option(parser)
    add_overwrite_option(parser)
    return parser.parse_args(argv)


def _run(args):
    from ..config.loading import load_config
    from ..config.settings import Settings
    from ..errors import ConfigError
    from ..predict.files import predict_files
    from ..predict.predictor import build_predictor
    from ..predict.sources import find_sources, is_video
    from ..predict.video import import_av, predict_video
    video = is_video(args.images)
    if args.frame_labels and not video:
        raise ConfigError('--frame-labels goes with a video; of images the label maps are written without it')
    if args.ids_from and video:
        raise ConfigError('--ids-from goes with images; the ids of frames are their numbers, from 0')
    cfg = load_config(args.config, cfg_options=args.cfg_options, settings=Settings(image_size=args.image_size),
                      tested=True, pretrained=False)
    if video:
        import_av()  # before the model is built
        predictor = build_predictor(cfg, args.checkpoint, args.score_thr)
        print(predict_video(predictor, args.images, args.out, args.overwrite, args.frame_labels))
        return
    root, paths = find_sources(args.images, cfg)
    predictor = build_predictor(cfg, args.checkpoint, args.score_thr, ids_from=args.ids_from)
    print(predict_files(predictor, root, paths, args.out, args.overwrite))
