"""Measure a config on this machine: backbone against float64, training time, memory, loss, metrics."""
import argparse
import json
import tempfile
from pathlib import Path

from .common import add_config_options, add_overwrite_option, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; ends as `run_tool` says."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    add_config_options(parser)
    parser.add_argument('--data-root', required=True, metavar='DIR', help='a data set in the layout of the config')
    parser.add_argument('--iterations', type=int, default=3, metavar='N', help='training iterations (default: 3)')
    parser.add_argument('--images', type=int, default=4, metavar='N', help='images to evaluate (default: 4)')
    parser.add_argument('--amp', action='store_true', help='train in mixed precision (GPU)')
    parser.add_argument('--pretrained', action='store_true', help='start from the weights of the config')
    parser.add_argument('--out', default='measured.json', metavar='FILE', help='full numbers (default: measured.json)')
    add_overwrite_option(parser)
    return parser.parse_args(argv)


def _run(args):
    from ..benchmark import measure
    from ..config import options
    from ..config.loading import load_config
    from ..data.classes import take_classes
    from ..data.datasets import check_data
    from ..files import OwnFiles
    from ..machine import describe_machine
    out = Path(args.out)
    with OwnFiles(out.parent, 'measure', args.overwrite) as own, tempfile.TemporaryDirectory() as folder:
        own.claim(out.name)
        data_root = Path(folder, 'data')
        cfg = load_config(args.config, cfg_options=args.cfg_options, data_root=args.data_root,
                          work_dir=Path(folder, 'placed'), pretrained=args.pretrained)
        check_data(cfg)
        take_classes(cfg)
        measure.cut_data(cfg, data_root, args.iterations * cfg.train_dataloader.batch_size, args.images)
        options.set_data_root(cfg, data_root)
        if args.amp:
            options.set_amp(cfg)
        cfg.work_dir = str(Path(folder, 'run'))
        measure.limit_iterations(cfg, args.iterations)
        result = dict(machine=describe_machine(), config=args.config, amp=args.amp,
                      backbone_errors=measure.backbone_errors(cfg.model.backbone),
                      training=measure.train_and_measure(cfg))
        out.write_text(json.dumps(result, indent=1))
    training = result['training']
    print(f'\n{result["machine"]["device"]}, torch {result["machine"]["torch"]}, {args.config}')
    for name, error in result['backbone_errors'].items():
        print(f'  backbone against float64, {name}: relative error {error:.1e}')
    print(f'  training, batch {training["batch_size"]}{", amp" if args.amp else ""}: '
          f'{training["seconds_per_iteration"]:.3g} s an iteration, peak {training["peak_memory_gib"]:.1f} GiB, '
          f'loss {training["losses"][0]:.3f} to {training["losses"][-1]:.3f} in {training["iterations"]} iterations')
    metrics = ', '.join(f'{k} {v:.3f}' for k, v in training['metrics'].items())
    print(f'  evaluation, {args.images} images: {training["seconds_per_image"]:.3g} s an image; '
          + (metrics or 'no object above the score threshold, so no AP'))
    print(f'  all numbers in {out}')
