"""Evaluate a checkpoint on the test data of a config and print its metrics.

    python -m xcit_dense test work_dirs/mine --report
    python -m xcit_dense test maskrcnn_xcit_s12_p8_coco xcit://maskrcnn_small_12_p8 --data-root DIR
"""
from argparse import ArgumentTypeError
from pathlib import Path

from ..errors import ConfigError, MetricError
from . import common


def main(argv=None):
    parser = common.Parser(description=__doc__)
    common.add_config_options(parser, checkpoint=True)
    common.add_run_options(parser)
    parser.add_argument('--report', nargs='?', const='', metavar='DIR', help='write a report: report.html with curves, '
                        'figures per class, the confusion matrix and the worst images, and these as CSV and PNG '
                        '(default for DIR: report in the work dir, with --knn and --linear report_knn and '
                        'report_linear)')
    parser.add_argument('--show-dir', metavar='DIR', help='draw predictions next to the ground truth into DIR; '
                        'classifiers: the same as --report DIR')
    common.add_shared(parser, 'overwrite')
    parser.add_argument('--at-least', type=minimum, nargs='+', default=[], metavar='METRIC=VALUE',
                        help='exit with code 1 if a metric is lower, for example coco/bbox_mAP=0.47 or mIoU=44')
    parser.add_argument('--tta', action='store_true', help='test-time augmentation: predict each image flipped and at '
                        'several scales, and merge the predictions')
    common.add_shared(parser, 'image-size', 'batch-size', 'workers', 'device', 'dtype', 'no-graphs', 'runtime')
    parser.add_argument('--size', type=int, metavar='PIXELS', help='classifiers: side of the crop (default: that of '
                        'the config)')
    parser.add_argument('--crop-ratio', type=common.finite, metavar='SHARE', help='classifiers: side of the crop '
                        'divided by the shorter side of the image, which is resized to PIXELS / SHARE (default: that '
                        'of the config)')
    parser.add_argument('--sizes', type=common.positive, nargs='+', default=[], metavar='PIXELS', help='test at each '
                        'of these image sizes, as --image-size or --size alone would, and write accuracy, time and '
                        'memory to sizes.json and sizes.png in the work dir. --report shows them, and is of the last '
                        'one')
    features = parser.add_argument_group('features of a backbone', 'CONFIG is that of a classifier of the same arch, '
                                         'with labelled images; CHECKPOINT any file with a class token, also without '
                                         'a head.')
    kind = features.add_mutually_exclusive_group()
    kind.add_argument('--knn', nargs='?', type=common.positive, const=20, metavar='K', help='classify each test image '
                      'by its K nearest training images, by the features of a backbone; published figures of DINO are '
                      'with --crop-ratio 0.875 (default for K: 20)')
    kind.add_argument('--linear', nargs='?', type=passes, const=100, metavar='EPOCHS', help='train a linear layer on '
                      'the features of the training images, and test it, as in the DINO paper; short instead of '
                      'EPOCHS, for small data: compute the features only once, without augmentation, and choose the '
                      'best learning rate (default for EPOCHS: 100)')
    common.run_tool(_run, parser.parse_args(argv))


def _run(args):
    from ..annotations import folder_of_training
    from ..config import testing
    from ..config.fit.fitting import use_fit
    from ..config.loading import load_config
    from ..config.settings import Settings
    from ..data.check.check import check_before_test, check_learned_alike, classified_data, warn_of_other_classes
    from ..data.classes import take_classes
    from ..data.datasets import check_data
    from ..predict.drawing import DrawingHook
    from ..predict.models import check_task, compare_with_config, is_exported, meta_of, open_exported
    from ..report.hooks import ReportHook
    from ..report.sizes import configs_by_size, measure_at_sizes
    from ..train.runner import build_runner
    from ..train.work_dirs import find_model
    from ..weights import fetch, read_checkpoint
    given, (args.config, args.checkpoint) = args.config, find_model(args.config, args.checkpoint)
    if args.config != given:
        args.work_dir = args.work_dir or given
    if Path(args.checkpoint).is_dir():
        args.checkpoint = str(fetch(args.checkpoint))  # so that everything names the file
    exported, judged = is_exported(args.checkpoint), '--knn' if args.knn else '--linear' if args.linear else None
    _check_options(args, exported, judged)
    settings = Settings(args.image_size, batch_size=args.batch_size, workers=args.workers)
    folder = folder_of_training(args.checkpoint)
    cfg = load_config(args.config, cfg_options=args.cfg_options, **common.data_options(args), work_dir=args.work_dir,
                      data_dir=folder, tested=True, pretrained=False, settings=settings)
    testing.check_labelled(cfg, args.config, judged)
    file = open_exported(args.checkpoint, args.runtime) if exported else None
    if exported:
        check_task(cfg, file, args.checkpoint)
    if missing := [name for name in ('test_dataloader', 'test_evaluator', 'test_cfg') if cfg.get(name) is None]:
        raise ConfigError(f'the config has no {", ".join(missing)}, so there is nothing to test. To test on the '
                          'validation data, set test_dataloader = val_dataloader and so on in your own config')
    if not args.sizes and (args.size, args.crop_ratio) != (None, None):
        testing.set_test_size(cfg, args.size, args.crop_ratio)
    common.set_run_options(cfg, args)
    loaders = testing.READ if judged else ('test_dataloader', )
    check_data(cfg, loaders)
    check_before_test(cfg, loaders)
    if judged:
        check_learned_alike(cfg)
    # this reads the file once more, so a download is read only if it is needed
    needed = cfg.get('classes_from_data') or classified_data(cfg)
    checkpoint = dict(state_dict={}, meta=dict(dataset_meta=meta_of(file))) if exported else read_checkpoint(
        args.checkpoint) if needed or Path(args.checkpoint).exists() else None
    _check_share(cfg, checkpoint, args.checkpoint, folder)
    sized = ['--image-size'] * bool(args.sizes or args.size or args.crop_ratio or judged)
    use_fit(cfg, checkpoint, (*(args.cfg_options or ()), *settings.options, *sized), source=args.checkpoint)
    # features have no classes: those of the data are learned
    checkpoint = checkpoint if needed and not judged else None
    take_classes(cfg, checkpoint, args.checkpoint, loaders=loaders)
    warn_of_other_classes(cfg, checkpoint, args.checkpoint)
    if exported:
        compare_with_config(cfg, file, args.checkpoint, sizes=not (args.image_size or args.sizes))
    cfgs = configs_by_size(cfg, args.sizes, args.crop_ratio, args.tta, tuple(args.cfg_options or ()))
    del checkpoint, file  # the model opens it again
    _set_options(cfg, args, exported, judged)
    runner = build_runner(cfg)
    if judged:
        from ..ssl.probes import load_features  # needs mmpretrain
        load_features(runner, args.checkpoint)
    try:
        metrics = measure_at_sizes(runner, cfgs, args.overwrite) if cfgs else runner.test()
    finally:
        for hook in runner.hooks:
            if isinstance(hook, (DrawingHook, ReportHook)):
                hook.close()
    _check_minima(metrics, args.at_least)


def _check_options(args, exported, judged):
    """Raise `ConfigError` for options that exclude each other."""
    from ..config.loading import list_models
    from ..weights.files import checkpoints_in
    for wrong, reason in (
            (args.runtime and not exported, '--runtime is only for exported files (.onnx); a checkpoint runs in torch'),
            (exported and (args.tta or judged or args.dtype != 'float32' or args.launcher != 'none'),
             '--tta, --knn, --linear, --dtype, --amp and --launcher are only for checkpoints: an exported file (.onnx) '
             'has a fixed type, may have a fixed image size, outputs no features and runs in one process'),
            (args.report in list_models() or args.report and checkpoints_in(args.report),
             f'--report reads the word after it, {args.report}: put --report last, or give it a new folder'),
            (args.sizes and (args.at_least or judged or args.show_dir),
             '--at-least, --show-dir, --knn and --linear need a test at one size: give --image-size, for a classifier '
             '--size, instead of --sizes'),
            (args.sizes and (args.size or args.image_size), '--sizes has all sizes: omit --size and --image-size'),
            (len(set(args.sizes)) < len(args.sizes),
             f'the values of --sizes must differ, got {" ".join(map(str, args.sizes))}'),
            (args.image_size and args.size,
             '--image-size and --size set the same for a classifier: give only one of them')):
        if wrong:
            raise ConfigError(reason)


def _check_share(cfg, checkpoint, source, folder):
    """Raise `ConfigError` if a test would hold out another share than the training, whose images are not known."""
    from ..data.datasets import LOADERS, datasets
    from ..weights.contents import config_of_checkpoint
    val, tested = ([dataset.files for dataset in datasets(cfg, [loader])] for loader in LOADERS[1:])
    now, before = cfg.get('val_share'), config_of_checkpoint(checkpoint).get('val_share')
    if now and isinstance(before, float) and now != before and val == tested and not folder:
        raise ConfigError(f'this test would hold out {now:g} of the images, and the training of {source} held out '
                          f'{before:g}: for the same data use --val-share {before:g}. Of other data, all is tested '
                          'with --test-images and --test-annotations')


def _set_options(cfg, args, exported, judged):
    """Put what is tested, and what is written of it, into the config."""
    from ..config import options, testing
    from ..config.tasks import task_of
    report, show_dir = args.report, args.show_dir
    if show_dir and task_of(cfg).predictor is None:  # nothing to draw into images
        report, show_dir = show_dir, None
    if show_dir:
        options.set_show_dir(cfg, show_dir, args.overwrite)
    if report is not None:
        folder = Path(report or Path(cfg.work_dir, 'report' + (judged or '').replace('--', '_')))
        options.add_hook(cfg, 'ReportHook', out_dir=str(folder.absolute()), overwrite=args.overwrite)
    if exported:
        cfg.model, cfg.load_from = dict(type='ExportedModel', file=args.checkpoint, runtime=args.runtime), None
    else:
        cfg.load_from = args.checkpoint
        options.add_hook(cfg, 'FuseHook')
        options.set_graphs(cfg, not args.no_graphs)
    if args.dtype != 'float32':
        options.add_hook(cfg, 'DtypeHook', dtype=args.dtype)
    if args.knn:
        testing.set_knn(cfg, args.knn)
    elif args.linear:
        testing.set_linear(cfg, 100 if args.linear == 'short' else args.linear, short=args.linear == 'short')
    if args.tta:
        testing.set_tta(cfg)


def passes(text: str):
    """Read a number of epochs, or ``short``, as the type of an option."""
    if text != 'short' and not text.isdecimal():
        raise ArgumentTypeError(f'must be a number of epochs, or short, got {text!r}')
    return text if text == 'short' else common.positive(text)


def minimum(text: str) -> tuple:
    """Read ``METRIC=VALUE`` as a name and a number, as the type of an option."""
    name, _, value = text.partition('=')
    return name, float(value)


def _check_minima(metrics, minima):
    """Raise `MetricError` unless every metric reaches its minimum."""
    for name, least in minima:
        if name not in metrics:
            raise MetricError(f'--at-least {name}: there is no such metric. Metrics: {", ".join(metrics) or "none"}')
        if not metrics[name] >= least:  # NaN fails too
            raise MetricError(f'{name} is {metrics[name]:.3f}, below the required {least:g}')
