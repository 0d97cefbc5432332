"""Predict images: draw the predictions, write COCO results (detection) or label maps (segmentation).

    python -m xcit_dense predict work_dirs/mine photos --out drawn
    python -m xcit_dense predict maskrcnn_xcit_s12_p8_coco xcit://maskrcnn_small_12_p8 photo.jpg --out drawn
"""
from .common import Parser, add_config_options, add_shared, finite, run_tool


def main(argv=None):
    parser = Parser(description=__doc__, epilog='An exported file takes the place of CONFIG and CHECKPOINT: it '
                    'contains the classes and how to read images.')
    add_config_options(parser, checkpoint=True)
    parser.add_argument('images', metavar='IMAGES', help='an image, a folder with images at any depth, a video (.mp4, '
                        '.avi, .mov, .mkv, .webm), or a list (.txt) with one path per line, relative to the list or to '
                        'the working folder; lines that begin with # are comments')
    parser.add_argument('--out', required=True, metavar='DIR',
                        help='output folder: a drawn copy of each image, results.json (detection) or labels/*.png '
                        '(segmentation), and classes.json with the class of each number; for a video a drawn copy '
                        '(.mp4), and results.json with the frame numbers, from 0, as image ids')
    parser.add_argument('--score-thr', type=finite, default=0.3, metavar='SCORE', help='detection: draw and label '
                        'objects with at least this score, from 0 to 1 (default: 0.3); results.json has all')
    parser.add_argument('--tile', type=int, metavar='PIXELS', help='split images larger than a square of this side '
                        'into tiles of this side and predict each tile by itself, with memory for one tile: for small '
                        'objects in large images, and for images that do not fit in memory (default: the whole image)')
    parser.add_argument('--overlap', type=finite, metavar='SHARE', help='smallest share of a tile that the next tile '
                        'also covers (default: 0.2)')
    parser.add_argument('--labels', choices=('labelme', 'coco', 'yolo', 'voc', 'maps'), help='also write labels for an '
                        'annotation tool, of objects with at least --score-thr: labelme for both tasks; coco, yolo and '
                        'voc for detection; maps (names for the label maps) for segmentation')
    add_shared(parser, 'image-size', 'device', 'dtype', 'no-graphs', 'runtime', 'overwrite')
    args = parser.parse_args(argv)
    exported = [path for path in (args.config, args.checkpoint) if str(path).lower().endswith('.onnx')]
    if exported and args.checkpoint:
        parser.error(f'{exported[0]} is an exported file, which needs no CONFIG or CHECKPOINT: {exported[0]} IMAGES')
    if exported:
        for name in ('cfg_options', 'image_size', 'device', 'dtype', 'no_graphs'):
            if vars(args)[name] not in (None, parser.get_default(name)):
                parser.error(f'--{name.replace("_", "-")} is only for checkpoints: it cannot change an exported file')
        args.config, args.checkpoint = None, args.config
    elif args.runtime:
        parser.error('--runtime is only for exported files (.onnx); a checkpoint runs in torch')
    run_tool(_run, args)


def _run(args):
    from ..config.loading import load_config
    from ..config.settings import Settings
    from ..errors import ConfigError
    from ..predict.files import find_sources, import_av, is_video, predict_files, predict_video
    from ..predict.models import config_of, open_exported
    from ..predict.predictor import build_predictor
    from ..predict.tiles import tiling_of
    from ..train.work_dirs import find_model
    video = is_video(args.images)
    tiling = tiling_of(args.tile, args.overlap)
    if tiling and video:
        raise ConfigError('--tile is only for images; the frames of a video are predicted whole. Omit --tile, or '
                          'extract the frames into a folder and predict that')
    if args.labels and video:
        raise ConfigError('--labels is only for images. Omit it, or extract the frames into a folder and predict that')
    settings = Settings(image_size=args.image_size)
    if args.config is None:
        checkpoint = open_exported(args.checkpoint, args.runtime)
        cfg = config_of(checkpoint)
    else:
        config, checkpoint = find_model(args.config, args.checkpoint, args.images)
        cfg = load_config(config, cfg_options=args.cfg_options, settings=settings, tested=True, pretrained=False)
    options = dict(given=(*(args.cfg_options or ()), *settings.options), graphs=not args.no_graphs, dtype=args.dtype)
    if video:
        import_av()  # before the model is built
        predictor = build_predictor(cfg, checkpoint, args.score_thr, **options)
        print(predict_video(predictor, args.images, args.out, args.overwrite))
        return
    root, paths = find_sources(args.images, cfg)
    predictor = build_predictor(cfg, checkpoint, args.score_thr, tiling=tiling, labels=args.labels, **options)
    print(predict_files(predictor, root, paths, args.out, args.overwrite))
