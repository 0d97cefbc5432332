"""Train the model of a config, on the GPU if there is one.

    python -m xcit_dense train maskrcnn_xcit_s12_p16_custom --data-root DIR
    python -m xcit_dense train maskrcnn_xcit_s12_p16_custom --data-root DIR --resume
"""
import os
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

from ..errors import ConfigError, OutputError
from . import common


def main(argv=None):
    parser = common.Parser(description=__doc__)
    parser.set_defaults(started=time.monotonic())  # for --minutes
    common.add_config_options(parser)
    common.add_settings_options(parser)
    common.add_run_options(parser)
    parser.add_argument('--resume', nargs='?', const='auto', metavar='FILE',
                        help='continue from checkpoint FILE; without FILE, from the newest in the work dir')
    parser.add_argument('--init-from', metavar='CHECKPOINT', help='start from a trained model, also one with other '
                        'classes: a checkpoint of a run, of mmdet or mmseg, a work dir, a URL or xcit://NAME; '
                        'a run that continues with --resume ignores it')
    parser.add_argument('--no-pretrained', action='store_true', help='start from random weights, download nothing')
    parser.add_argument('--no-fit', action='store_true', help='keep the recipe of a config that reads its classes from '
                        'the data; by default such a config is fitted to the data, and the log says what is changed')
    parser.add_argument('--suggest', nargs='?', const='-', metavar='FILE', help='do not train: print a config that '
                        'fits the data, or write it to FILE; train accepts it as CONFIG')
    parser.add_argument('--overwrite', action='store_true', help='use a work dir that holds checkpoints of another '
                        'run, and move those into a folder in it; with --suggest, replace FILE')
    parser.add_argument('--data-findings', choices=('stop', 'warn'), default='stop',
                        help='stop at errors in the data, or warn and continue; check_data shows them (default: stop)')
    parser.add_argument('--config-findings', choices=('stop', 'warn'),
                        help='stop at mistakes in the config or in --cfg-options, or warn and continue, in case the '
                        'check is wrong; an option that cannot have an effect is then ignored (default: stop)')
    parser.add_argument('--seed', type=int, metavar='N', help='start of all random numbers, the same as --cfg-options '
                        'randomness.seed=N; a run that continues with --resume keeps its own (default: another one in '
                        'each run)')
    common.add_shared(parser, 'device', 'amp', 'no-graphs')
    parser.add_argument('--compile', action='store_true', help='train the backbone with torch.compile')
    parser.add_argument('--auto-scale-lr', action='store_true',
                        help='scale the learning rate linearly with the total batch size of all processes')
    parser.add_argument('--patience', type=common.positive, metavar='N', help='stop early, after N validations '
                        'without a better one')
    parser.add_argument('--val-loss', action='store_true', help='also measure every loss on the validation data, in '
                        'the log and the curves; a validation takes about twice as long')
    parser.add_argument('--save-teacher', action='store_true', help='distillation: write the teacher into the '
                        'checkpoints too, next to the student')
    parser.add_argument('--log', nargs='+', choices=('tensorboard', 'wandb'), default=[], metavar='NAME',
                        help='also log to tensorboard or wandb, or both: losses, metrics, learning '
                        'rate, config, and pictures of some validation images with predictions')
    common.run_tool(_run, parser.parse_args(argv))


def _run(args):
    if args.suggest:
        _suggest(args)
        return
    if args.seed is not None:
        args.cfg_options['randomness.seed'] = args.seed
    from ..config import options
    options.check_loggers(args.log)
    from mmengine.logging import print_log

    from .._utils.processes import is_first_process
    from ..annotations import folder_of_training
    from ..config.fit.fitting import fit, fits_itself, use_fit
    from ..config.loading import load_config
    from ..config.runner import is_ours
    from ..data.check.check import check_before_training
    from ..data.classes import take_classes
    from ..data.datasets import check_data
    from ..report.hooks import close_loggers
    from ..ssl.teacher import check_teacher
    from ..train.minutes import set_minutes
    from ..train.resuming import find_resumed, source_of
    from ..train.runner import build_runner
    from ..train.work_dirs import check_work_dir
    from ..weights import read_checkpoint
    from ..weights.contents import config_of_checkpoint
    _check_start(args)
    data_dir = None if args.resume in (None, 'auto') else folder_of_training(args.resume)
    cfg = load_config(args.config, cfg_options=args.cfg_options, **common.data_options(args),
                      settings=common.settings_of(args), work_dir=args.work_dir, data_dir=data_dir,
                      replaces=bool(args.resume or args.overwrite), pretrained=not args.no_pretrained,
                      init_from=args.init_from, check=True, findings=args.config_findings)
    common.set_run_options(cfg, args)
    _check_alone(args.launcher)
    if args.resume:
        cfg.resume = args.resume  # and load_from stays that of the training, for its config in the work dir
    if is_first_process(args.launcher):
        check_work_dir(cfg, args.overwrite)
    if args.save_teacher:
        options.set_save_teacher(cfg)
    ours, resumed = is_ours(cfg), None
    if cfg.get('resume') and ours:  # mmengine's may resume what is not on a disk
        resumed = read_checkpoint(find_resumed(source_of(cfg.resume, cfg.get('load_from')), cfg.work_dir))
    check_teacher(cfg, resumed)
    check_data(cfg, ('train_dataloader', 'val_dataloader'), args.data_findings)
    reports = check_before_training(cfg, args.data_findings)
    take_classes(cfg, on_findings=args.data_findings)
    if cfg.get('resume'):
        if resumed:
            use_fit(cfg, resumed, (*(args.cfg_options or ()), *common.settings_of(args).options), trains=True)
        if args.minutes is not None and is_first_process(args.launcher):
            print_log(f'--minutes {args.minutes:g} is not used: a resumed run keeps its length', logger='current')
    else:
        cfg.pop('timed', None)  # of the run whose config this is
        if ours and not args.no_fit and fits_itself(cfg):
            fit(cfg, common.settings_of(args), (*(args.cfg_options or ()), *['train_cfg'] * bool(args.minutes)))
    if args.amp:
        options.set_amp(cfg, args.amp, config_of_checkpoint(resumed))
    if args.compile:
        options.check_compiler()
        options.add_hook(cfg, 'CompileHook')
    options.set_graphs(cfg, not (args.no_graphs or args.compile))
    if args.auto_scale_lr:
        options.set_auto_scale_lr(cfg)
    options.set_best(cfg, args.patience)
    if args.val_loss:
        options.set_val_loss(cfg)
    if args.log:
        options.add_hook(cfg, 'LoggersHook', loggers=args.log)
    in_time = None
    if args.minutes is not None and not cfg.get('resume'):
        in_time = set_minutes(cfg, args.minutes, args.started, args.cfg_options or ())
    runner = build_runner(cfg)
    if in_time:
        runner.register_hook(in_time)
    runner.data_findings, runner.data_report = args.data_findings, reports.get('train_dataloader')
    try:
        runner.train()
    finally:
        close_loggers(runner)


def _suggest(args):
    """Print or write a config that fits the data; the log goes to stderr, as the config may be piped into a file."""
    from .._utils.files import atomic_write, check_no_input
    from .._utils.processes import is_first_process
    from ..config.fit.fitting import suggest
    from ..config.loading import load_config
    from ..data.classes import take_classes
    from ..data.datasets import LOADERS, check_data
    if args.resume or args.minutes is not None:
        option, what = ('--resume', 'resume') if args.resume else ('--minutes', 'measure')
        raise ConfigError(f'--suggest does not train, so there is nothing to {what}: omit --suggest or {option}')
    path = None if args.suggest == '-' else Path(args.suggest).expanduser()
    with redirect_stdout(sys.stderr):
        cfg = load_config(args.config, cfg_options=args.cfg_options, **common.data_options(args),
                          settings=common.settings_of(args), work_dir=args.work_dir,
                          pretrained=not args.no_pretrained, init_from=args.init_from, findings=args.config_findings)
        common.set_run_options(cfg, args)
        check_data(cfg, LOADERS[:1], args.data_findings)
        take_classes(cfg, loaders=LOADERS[:1], on_findings=args.data_findings)
        text = suggest(cfg, args.config, args.data_root or 'the data of the config', common.settings_of(args),
                       args.cfg_options or (), path)
        check_no_input(*[path] * bool(path))  # such as a base of the config, or a list of classes
        if path and os.path.lexists(path) and (not args.overwrite or path.is_dir()):
            raise OutputError(f'{path} already exists: give another name' + (
                '; it is a folder' if path.is_dir() else ', or --overwrite to replace it'))
    if not is_first_process(args.launcher):
        return
    if path is None:
        print(text, end='')
        return
    with atomic_write(path) as part:
        part.write_text(text)
    print(f'wrote {path}. Pass it to train as CONFIG, with the same --cfg-options and options of data and weights',
          file=sys.stderr)


def _check_start(args):
    """Raise `ConfigError` if two options set the weights to start from, or if there are no minutes."""
    if args.minutes is not None and args.minutes <= 0:
        raise ConfigError(f'--minutes must be a number above 0, got {args.minutes:g}')
    options = args.cfg_options or {}
    named = {'--init-from': args.init_from, '--cfg-options init_from': options.get('init_from'),
             '--no-pretrained': args.no_pretrained, '--cfg-options load_from': options.get('load_from')}
    first, *others = [option for option, value in named.items() if value] or [None]
    if first and 'init' in first and others and not args.resume:
        raise ConfigError(f'{first} and {others[0]} both set the weights that the training starts from: omit one')


def _check_alone(launcher):
    """Raise `ConfigError` in one of several processes that would each train by itself, in one work dir."""
    count = os.environ.get('WORLD_SIZE', '1')
    if launcher == 'none' and 'RANK' in os.environ and count.isdecimal() and int(count) > 1:
        raise ConfigError(f'this is one of {count} processes (WORLD_SIZE), and each would train its own model in the '
                          'same work dir. Give --launcher pytorch, or unset WORLD_SIZE if you do not use torchrun')
