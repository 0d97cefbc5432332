"""Measure a config on this machine: numerical error of the backbone, training time, memory, loss, metrics.

    python -m xcit_dense measure maskrcnn_xcit_s12_p8_coco --data-root DIR
"""
import json
import tempfile
from pathlib import Path

from xcit_dense._utils.text import counted
from xcit_dense.cli.common import Parser, add_config_options, add_shared, positive, run_tool


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; exits as `run_tool` describes."""
    parser = Parser(description=__doc__)
    add_config_options(parser)
    parser.add_argument('--data-root', '--data', required=True, metavar='DIR', help='a data set in the layout of the '
                        'config')
    parser.add_argument('--iterations', type=positive, default=3, metavar='N', help='training iterations (default: 3)')
    parser.add_argument('--images', type=positive, default=4, metavar='N', help='images to evaluate (default: 4)')
    add_shared(parser, 'amp')
    parser.add_argument('--pretrained', action='store_true', help='start from the pretrained weights of the config '
                        '(default: random weights)')
    parser.add_argument('--out', default='measured.json', metavar='FILE', help='JSON file for all numbers (default: '
                        'measured.json)')
    add_shared(parser, 'overwrite')
    run_tool(_run, parser.parse_args(argv))


def _run(args):
    from xcit_dense._utils.files import OwnFiles
    from xcit_dense._utils.machine import describe_machine
    from xcit_dense.config import options
    from xcit_dense.config.loading import load_config
    from xcit_dense.data.classes import take_classes
    from xcit_dense.data.datasets import check_data

    from . import short_training
    out = Path(args.out)
    with OwnFiles(out.parent, 'measure', args.overwrite) as own, tempfile.TemporaryDirectory() as folder:
        cfg = load_config(args.config, cfg_options=args.cfg_options, data_root=args.data_root,
                          work_dir=Path(folder, 'placed'), pretrained=args.pretrained)
        own.claim(out.name)
        check_data(cfg)
        take_classes(cfg)
        short_training.cut_data(cfg, folder, args.iterations * cfg.train_dataloader.batch_size, args.images)
        if args.amp:
            options.set_amp(cfg, args.amp)
        cfg.work_dir = str(Path(folder, 'run'))
        short_training.limit_iterations(cfg, args.iterations)
        result = dict(machine=describe_machine(), config=args.config, amp=args.amp,
                      backbone_errors=short_training.backbone_errors(cfg.model.backbone),
                      training=short_training.train_and_measure(cfg))
        out.write_text(json.dumps(result, indent=1))
    print('\n'.join(['', *_lines(result, args.images), f'All numbers are in {out}']))


def _lines(result, images):
    """Return what was measured as a table, with a row for each number."""
    training, machine = result['training'], result['machine']
    rows = {f'error of the backbone in {name}': f'{error:.1e}' for name, error in result['backbone_errors'].items()}
    rows.update({'iteration': f'{training["seconds_per_iteration"]:.3g} s, with batches of {training["batch_size"]}',
                 'peak memory': f'{training["peak_memory_gib"]:.1f} GiB',
                 'loss': f'{training["losses"][0]:.3f} to {training["losses"][-1]:.3f}'})
    if training['seconds_per_image'] is not None:
        rows[f'evaluation of {counted(images, "images")}'] = f'{training["seconds_per_image"]:.3g} s per image'
    rows.update({name: f'{value:.3f}' for name, value in training['metrics'].items()})
    width = max(map(len, rows))
    return [f'{machine["device"]}, torch {machine["torch"]}, {result["config"]}{", amp" if result["amp"] else ""}',
            *(f'{name:{width}}  {value}' for name, value in rows.items())]
