"""What the command-line tools share: options, and errors as one line instead of a traceback."""
import os
import re
import sys
from argparse import ArgumentParser
from pathlib import Path

from mmengine.config import DictAction

from ..config.catalog import find_config
from ..errors import ConfigError, MetricError, Stopped, XCiTDenseError
from ..processes import leave_group


class ConfigOptions(DictAction):
    """mmengine's action, with one error for what it cannot take."""

    def __call__(self, parser, namespace, values, option_string=None):
        """Add the items ``KEY=VALUE`` to the dict.

        Raises:
            ConfigError: An item is none, or holds a dict, or its brackets do not match.
        """
        for item in values:
            key, equals, value = item.partition('=')
            if not key or not equals:
                raise ConfigError(f'{option_string} takes KEY=VALUE, such as train_cfg.val_interval=2, got {item!r}')
            if re.search(r'''(^|[\[(,])\s*(dict\(|\{\s*['"\w]+\s*:)''', value):
                base = find_config(getattr(namespace, 'config', None) or 'maskrcnn_xcit_s12_p8_coco').absolute()
                raise ConfigError(f'{option_string} takes no dicts, got {item!r}. Write it into a config file of '
                                  f"your own and give that as CONFIG:\n  _base_ = '{base}'\n  {_as_python(key, value)}")
            try:
                super().__call__(parser, namespace, [item], option_string)
            except AssertionError:
                raise ConfigError(f'{option_string} {item!r}: the brackets do not match; a list is written '
                                  f'"{key}=[1,2]"') from None


def _as_python(key, value):
    """Return the line of a config file that does what an option was meant to."""
    first, *parts = key.split('.')
    for part in reversed(parts):
        value = f'dict({part}={value})'
    return f'{first} = {value}'


def add_config_options(parser: ArgumentParser, checkpoint: bool = False):
    """Add the config, the checkpoint if wanted, and the options of every tool that builds a model."""
    parser.add_argument('config', metavar='CONFIG',
                        help='name of a config, such as maskrcnn_xcit_s12_p8_coco, or a file')
    if checkpoint:
        parser.add_argument('checkpoint', metavar='CHECKPOINT',
                            help='weights of the whole model: a path, an address, xcit://NAME of the model table, or a '
                            'work dir (its newest)')
    parser.add_argument('--cfg-options', nargs='+', action=ConfigOptions, metavar='KEY=VALUE',
                        help='change the config: a.b=value; lists as a="[1,2]" without blanks')


def add_run_options(parser: ArgumentParser):
    """Add the options of the tools that run a data set through a model."""
    parser.add_argument('--work-dir', metavar='DIR', help='where logs and checkpoints go '
                        '(default: work_dirs/ and the name of the config)')
    parser.add_argument('--data-root', metavar='DIR', help='folder of the data set, for all loaders and evaluators')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                        help='how the processes of a distributed run were started (default: none)')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by torch.distributed.launch')


def set_run_options(cfg, args):
    """Put the values of `add_run_options` into the config; the data root is `load_config`'s."""
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg.launcher = args.launcher
    if args.work_dir:
        cfg.work_dir = args.work_dir
    elif not cfg.get('work_dir'):
        cfg.work_dir = str(Path('work_dirs', Path(args.config).stem))


def parse_minimum(text):
    """Turn ``METRIC=VALUE`` into a name and a number.

    Raises:
        ConfigError: It is something else.
    """
    name, _, value = text.partition('=')
    try:
        return name, float(value)
    except ValueError:
        raise ConfigError(f'--at-least takes METRIC=VALUE with a number, got {text!r}') from None


def check_minima(metrics, minima):
    """Raise `MetricError` unless every metric reaches its minimum."""
    for name, least in minima:
        if name not in metrics:
            raise MetricError(f'--at-least {name}: there is no such metric; there are {", ".join(metrics) or "none"}')
        if not metrics[name] >= least:  # NaN falls short too
            raise MetricError(f'{name} is {metrics[name]:.3f}, below the {least:g} asked for')


def run(main):
    """Call a tool's ``main``; what a user can mend ends with one message and exit code 1, a signal with its own."""
    code = 0
    try:
        main()
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        code = 128 + stopped.number
    except XCiTDenseError as error:
        sys.exit(f'error: {error}')
    except KeyboardInterrupt:
        training = Path(sys.argv[0]).stem == 'train'
        hint = '; --resume goes on from the last checkpoint, if there is one' if training else ''
        print(f'stopped{hint}', file=sys.stderr)
        sys.exit(130)
    leave_group()  # behind the exception, whose traceback holds the runner
    if code:
        sys.exit(code)
