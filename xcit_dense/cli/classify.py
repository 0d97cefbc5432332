"""Name what images show, with probabilities, by a published classifier or one of your own."""
import argparse

from .common import add_overwrite_option, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; ends as `run_tool` says."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('checkpoint', metavar='CHECKPOINT',
                        help='a classifier: the name of a published file, such as small_12_p16_224, an address, a '
                        'path, or a work dir (its newest)')
    parser.add_argument('images', metavar='IMAGE_OR_FOLDER', help='an image, or a folder with images at any depth')
    parser.add_argument('--out', default='classified.json', metavar='FILE',
                        help='gets all classes of --top with their probabilities, as JSON (default: classified.json)')
    parser.add_argument('--top', type=int, default=5, metavar='N', help='classes for an image (default: 5)')
    parser.add_argument('--size', type=int, metavar='PIXELS',
                        help='side of the square that is seen (default: that of the config, 384 for files that were '
                        'published for it, else 224)')
    parser.add_argument('--crop-ratio', type=float, metavar='SHARE',
                        help='share of the shorter side that is seen (default: that of the config, else 1)')
    parser.add_argument('--config', metavar='CONFIG',
                        help='name or file of the config of the training, in the place of the one in the checkpoint of '
                        'a run; for a backbone of your own, or where the file has none and is not like the published '
                        'ones')
    add_overwrite_option(parser)
    return parser.parse_args(argv)


def _run(args):
    from ..data.datasets import find_images
    from ..errors import ConfigError
    from ..predict.classify_files import classify_files
    from ..predict.classifying import Classifier
    if args.top < 1:
        raise ConfigError(f'--top takes a number from 1 up, got {args.top}')
    root, paths = find_images(args.images)
    classifier = Classifier(args.checkpoint, args.size, args.crop_ratio, args.config)
    print(f'{len(classifier.names):,} classes (names: {classifier.names_from}); images of {classifier.size} x '
          f'{classifier.size} pixels, crop ratio {classifier.crop_ratio:g}')
    classify_files(classifier, args.checkpoint, root, paths, args.out, args.top, args.overwrite)
