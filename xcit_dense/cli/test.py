"""Evaluate a checkpoint on the test data of a config and print the table of its metrics."""
import copy
from pathlib import Path

from ..errors import ConfigError, DataError, MetricError
from .common import (
    Parser,
    add_config_options,
    add_image_size_option,
    add_overwrite_option,
    add_run_options,
    data_options,
    run_tool,
    set_run_options,
)


def main(argv=None):
    """Run the tool with some arguments, by default those of the process; ends as `run_tool` says."""
    run_tool(_run, _read_options(argv))


def _read_options(argv):
    parser = Parser(description=__doc__)
    add_config_options(parser, checkpoint=True)
    add_run_options(parser)
    parser.add_argument('--show-dir', metavar='DIR', help='draw predictions beside the ground truth into DIR; for a '
                        'classifier the confusion matrix and the worst mistakes')
    add_overwrite_option(parser)
    parser.add_argument('--at-least', nargs='+', default=[], metavar='METRIC=VALUE',
                        help='exit with 1 if a metric is below, for example coco/bbox_mAP=0.47 or mIoU=44')
    add_image_size_option(parser)
    size = parser.add_mutually_exclusive_group()
    size.add_argument('--size', type=int, metavar='PIXELS', help='classifiers: the side of the crop that is tested '
                      '(default: that of the config)')
    size.add_argument('--sizes', type=int, nargs='+', metavar='PIXELS', help='classifiers: test at each, print a table '
                      'and write it to sizes.json and sizes.png in the work dir')
    parser.add_argument('--crop-ratio', type=float, metavar='SHARE', help='classifiers: the crop over the shorter side '
                        'of the image, which is resized to PIXELS / SHARE (default: that of the config)')
    return parser.parse_args(argv)


def _run(args):
    from ..config import options
    from ..config.image_size import compare_test_size
    from ..config.loading import load_config
    from ..config.resolution import set_test_size
    from ..config.settings import Settings
    from ..data.check import ERROR, check_before_test, check_beside, classified_data, warn_of_other_classes
    from ..data.classes import take_classes
    from ..data.datasets import check_data
    from ..data.evaluators import check_evaluators
    from ..data.layouts import folder_of_training
    from ..predict.drawing_hook import DrawingHook
    from ..report.hook import ReportHook
    from ..train.runner import build_runner
    from ..train.sizes import test_at_sizes
    from ..weights import read_checkpoint
    at_least = [_parse_minimum(text) for text in args.at_least]
    if args.sizes and (at_least or args.show_dir):
        raise ConfigError('--at-least and --show-dir are of one test: give --size instead of --sizes')
    sizes = args.sizes or []
    if len(set(sizes)) < len(sizes):
        raise ConfigError(f'--sizes must differ, got {" ".join(map(str, sizes))}')
    if args.image_size and (args.size or args.sizes):
        raise ConfigError('--image-size, --size and --sizes say the same of a classifier: give one')
    cfg = load_config(args.config, cfg_options=args.cfg_options, **data_options(args), work_dir=args.work_dir,
                      data_dir=folder_of_training(args.checkpoint), settings=Settings(image_size=args.image_size),
                      tested=True, pretrained=False)
    # mmpretrain's configs have an empty test_cfg
    if missing := [name for name, given in (('test_dataloader', cfg.get('test_dataloader')),
                                            ('test_evaluator', cfg.get('test_evaluator')),
                                            ('test_cfg', cfg.get('test_cfg') is not None)) if not given]:
        raise ConfigError(f'the config has no {", ".join(missing)}, and there is nothing to test without. Where the '
                          'validation data will do: test_dataloader = val_dataloader and so on, in a config of your '
                          'own')
    for size in sizes:  # what cannot be is said before the first test
        set_test_size(copy.deepcopy(cfg), size, args.crop_ratio)
    if not sizes and (args.size, args.crop_ratio) != (None, None):
        set_test_size(cfg, args.size, args.crop_ratio)
    set_run_options(cfg, args)
    check_data(cfg, loaders=('test_dataloader', ))
    check_evaluators(cfg, ('test_dataloader', ))
    if wrong := [found.sentence for found in check_beside(cfg, ['test_dataloader']) if found.severity == ERROR]:
        raise DataError('\n'.join(wrong))
    check_before_test(cfg)
    # reads the file once more, which what is fetched is spared where it can be
    needed = cfg.get('classes_from_data') or classified_data(cfg)
    checkpoint = read_checkpoint(args.checkpoint) if needed or Path(args.checkpoint).exists() else None
    if not (args.size or sizes or args.image_size or args.crop_ratio):
        compare_test_size(cfg, checkpoint, args.checkpoint)
    checkpoint = checkpoint if needed else None
    take_classes(cfg, checkpoint, args.checkpoint, loaders=['test_dataloader'])
    warn_of_other_classes(cfg, checkpoint, args.checkpoint)
    del checkpoint
    if args.show_dir:
        options.set_show_dir(cfg, args.show_dir, args.overwrite)
    cfg.load_from = args.checkpoint
    options.add_hook(cfg, 'FuseHook')
    runner = build_runner(cfg)
    if sizes:
        print(test_at_sizes(runner, sizes, args.crop_ratio, args.overwrite))
        return
    try:
        metrics = runner.test()
    finally:
        for hook in runner.hooks:
            if isinstance(hook, (DrawingHook, ReportHook)):
                hook.close()
    _check_minima(metrics, at_least)


def _parse_minimum(text):
    """Turn ``METRIC=VALUE`` into a name and a number.

    Raises:
        ConfigError: It is something else.
    """
    name, _, value = text.partition('=')
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f'--at-least takes METRIC=VALUE with a number, got {text!r}') from None


def _check_minima(metrics, minima):
    """Raise `MetricError` unless every metric reaches its minimum."""
    for name, least in minima:
        if name not in metrics:
            raise MetricError(f'--at-least {name}: there is no such metric; there are {", ".join(metrics) or "none"}')
        if not metrics[name] >= least:  # NaN falls short too
            raise MetricError(f'{name} is {metrics[name]:.3f}, below the {least:g} asked for')
