"""Classify images with a published classifier or your own: print and save the most probable classes.

    python -m xcit_dense classify small_12_p16_224 photos
"""
from .common import Parser, add_shared, finite, positive, run_tool


def main(argv=None):
    parser = Parser(description=__doc__)
    parser.add_argument('checkpoint', metavar='CHECKPOINT', help='a classifier: the name of a published file, such as '
                        'small_12_p16_224, a URL, a path, or a work dir (its best checkpoint)')
    parser.add_argument('images', metavar='IMAGE_OR_FOLDER', help='an image, or a folder with images at any depth')
    parser.add_argument('--out', default='classified.json', metavar='FILE',
                        help='JSON file for the classes and their probabilities (default: classified.json)')
    parser.add_argument('--top', type=positive, default=5, metavar='N', help='number of classes per image (default: 5)')
    parser.add_argument('--size', type=int, metavar='PIXELS', help='side of the crop (default: that of the config, '
                        'otherwise 384 for files published for that size and 224 for others)')
    parser.add_argument('--crop-ratio', type=finite, metavar='SHARE', help='side of the crop divided by the shorter '
                        'side of the image (default: that of the config, otherwise 1)')
    add_shared(parser, 'config', 'overwrite')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from ..predict.classifying import Classifier, classify_files
    from ..predict.files import find_sources
    root, paths = find_sources(args.images)
    classifier = Classifier(args.checkpoint, args.size, args.crop_ratio, args.config)
    print(f'{len(classifier.names):,} classes (names: {classifier.names_from}); crops of {classifier.size} x '
          f'{classifier.size} pixels, crop ratio {classifier.crop_ratio:g}')
    classify_files(classifier, args.checkpoint, root, paths, args.out, args.top, args.overwrite)
