"""Train the model of a config, on the GPU if there is one."""
import argparse

from xcit_dense.cli import common as cli
from xcit_dense.config import loading as config
from xcit_dense.data import datasets as data
from xcit_dense.data.check import check_before_training
from xcit_dense.processes import is_first_process
from xcit_dense.train import build_runner
from xcit_dense.train.saving import check_work_dir, move_old_checkpoints


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    cli.add_config_options(parser)
    cli.add_run_options(parser)
    parser.add_argument('--resume', nargs='?', const='auto', metavar='FILE',
                        help='go on from a checkpoint; without FILE from the newest in the work dir')
    parser.add_argument('--overwrite', action='store_true', help='start anew in a work dir that holds '
                        'checkpoints, which are moved into a folder in it')
    parser.add_argument('--no-pretrained', action='store_true', help='start from random weights, fetch nothing')
    parser.add_argument('--data-findings', choices=('stop', 'warn'), default='stop',
                        help='what to do about faults in the data, see check_data (default: stop)')
    parser.add_argument('--amp', action='store_true', help='mixed precision (GPU)')
    parser.add_argument('--compile', action='store_true', help='train the backbone under torch.compile')
    parser.add_argument('--auto-scale-lr', action='store_true',
                        help='scale the learning rate linearly with the batch size over all processes')
    return parser.parse_args()


def main():
    args = parse_args()
    # a resumed run takes its weights from the checkpoint: nothing to fetch
    pretrained = not args.no_pretrained and not args.resume
    cfg = config.load_config(args.config, cfg_options=args.cfg_options, data_root=args.data_root,
                             pretrained=pretrained, check=True)
    cli.set_run_options(cfg, args)
    if is_first_process(args.launcher):
        check_work_dir(cfg.work_dir, new=not args.resume and not args.overwrite)
    data.check_data(cfg, loaders=('train_dataloader', 'val_dataloader'))
    check_before_training(cfg, args.data_findings)
    data.take_classes(cfg)
    if args.amp:
        config.set_amp(cfg)
    if args.compile:
        config.check_compiler()
        config.add_hook(cfg, 'CompileHook')
    if args.auto_scale_lr:
        config.set_auto_scale_lr(cfg)
    if args.resume:
        cfg.resume = True
        cfg.load_from = None if args.resume == 'auto' else args.resume
    if args.overwrite and not args.resume and is_first_process(args.launcher):
        move_old_checkpoints(cfg.work_dir)
    build_runner(cfg).train()


if __name__ == '__main__':
    cli.run(main)
