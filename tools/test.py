"""Evaluate a checkpoint on the test data of a config and print the table of its metrics."""
import argparse

from xcit_dense.cli import common as cli
from xcit_dense.config import loading as config
from xcit_dense.data import datasets as data
from xcit_dense.train import build_runner
from xcit_dense.weights import read_checkpoint


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    cli.add_config_options(parser, checkpoint=True)
    cli.add_run_options(parser)
    parser.add_argument('--show-dir', metavar='DIR', help='draw predictions beside the ground truth into DIR')
    parser.add_argument('--at-least', nargs='+', default=[], metavar='METRIC=VALUE',
                        help='exit with 1 if a metric is below, for example coco/bbox_mAP=0.47 or mIoU=44')
    return parser.parse_args()


def main():
    args = parse_args()
    at_least = [cli.parse_minimum(text) for text in args.at_least]
    cfg = config.load_config(args.config, cfg_options=args.cfg_options, data_root=args.data_root, pretrained=False)
    cli.set_run_options(cfg, args)
    data.check_data(cfg, loaders=('test_dataloader', ))
    if cfg.get('classes_from_data'):  # reads the file once more, which the others are spared
        data.take_classes(cfg, read_checkpoint(args.checkpoint), args.checkpoint, loaders=['test_dataloader'])
    if args.show_dir:
        config.set_show_dir(cfg, args.show_dir)
    cfg.load_from = args.checkpoint
    config.add_hook(cfg, 'FuseHook')
    metrics = build_runner(cfg).test()
    cli.check_minima(metrics, at_least)


if __name__ == '__main__':
    cli.run(main)
