"""Draw the predictions of a checkpoint on images and write them in COCO's results format."""
import argparse

from xcit_dense.engine import cli, config
from xcit_dense.engine.predict import Predictor, predict_folder


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    cli.add_config_options(parser, checkpoint=True)
    parser.add_argument('images', metavar='IMAGE_OR_FOLDER', help='an image, or a folder with images at any depth')
    parser.add_argument('--out', required=True, metavar='DIR', help='gets one picture per image and results.json')
    parser.add_argument('--score-thr', type=float, default=0.3, metavar='SCORE',
                        help='draw objects from this score up (default: 0.3); results.json holds all')
    return parser.parse_args()


def main():
    args = parse_args()
    cfg = config.load_config(args.config, cfg_options=args.cfg_options, pretrained=False)
    predictor = Predictor(cfg, args.checkpoint, args.score_thr)
    images, objects = predict_folder(predictor, args.images, args.out)
    print(f'{images} pictures and {objects} objects (results.json) in {args.out}')


if __name__ == '__main__':
    cli.run(main)
