"""What the tools share: options, and errors as one line instead of a traceback.

Nothing here or at the top of a tool imports torch or a framework, so that help is there at once.
"""
import os
import re
import sys
from argparse import ArgumentParser

from ..errors import ConfigError, Stopped, XCiTDenseError
from ..interrupts import stop_as_usual
from ..text import nearest


class Parser(ArgumentParser):
    """A parser whose errors say what was meant."""

    def parse_known_args(self, args=None, namespace=None):
        """Read arguments; see argparse."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(args, namespace)

    def error(self, message):
        """End with a message and exit code 2."""
        known = re.findall(r'--[a-z][\w-]*', self.format_help())
        for word in re.findall(r'--[\w-]+', message.partition('unrecognized arguments: ')[2]):
            if meant := nearest(word, known):
                message += f'; did you mean {meant[0]} for {word}?'
        swallowed = [word for word in self._words[self._words.index('--cfg-options') + 1:] if '=' not in word] \
            if '--cfg-options' in self._words and 'required: ' in message else []
        if swallowed:
            message += f'; --cfg-options takes all words behind it, {swallowed[0]} too: put CONFIG before it'
        super().error(message)


def run_tool(run, args):
    """Run a tool.

    What a user can mend ends with one message and exit code 1, a signal with its own.

    Args:
        run: Called with ``args``, once the package is loaded.
        args: The values of the tool's options.

    Raises:
        SystemExit: The tool did not end well.
    """
    code = 0
    try:
        from .. import interface  # noqa: F401  registers everything
        stop_as_usual()
        if 'cfg_options' in args:
            args.cfg_options = _read_config_options(args.cfg_options, args.config)
        run(args)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        code = 128 + stopped.number
    except XCiTDenseError as error:
        sys.exit(f'error: {error}')
    except KeyboardInterrupt:
        hint = '; --resume goes on from the last checkpoint, if there is one' if 'resume' in args else ''
        print(f'stopped{hint}', file=sys.stderr)
        sys.exit(130)
    from ..processes import leave_group
    leave_group()  # behind the exception, whose traceback holds the runner
    if code:
        sys.exit(code)


def add_config_options(parser: ArgumentParser, checkpoint: bool = False):
    """Add the config, the checkpoint if wanted, and the options of every tool that builds a model."""
    parser.add_argument('config', metavar='CONFIG',
                        help='name of a config, such as maskrcnn_xcit_s12_p8_coco, or a file')
    if checkpoint:
        parser.add_argument('checkpoint', metavar='CHECKPOINT',
                            help='weights of the whole model: a path, an address, xcit://NAME of the model table, or a '
                            'work dir (its newest)')
    parser.add_argument('--cfg-options', nargs='+', action='extend', metavar='KEY=VALUE',
                        help='change the config: a.b=value; lists as a="[1,2]" without blanks')


def add_run_options(parser: ArgumentParser):
    """Add the options of the tools that run a data set through a model."""
    parser.add_argument('--work-dir', metavar='DIR', help='where logs and checkpoints go '
                        '(default: work_dirs/ and the name of the config)')
    add_data_options(parser)
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                        help='how the processes of a distributed run were started (default: none)')
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help='set by torch.distributed.launch')


def add_data_options(parser: ArgumentParser):
    """Add the options that say where the data is, and what of it."""
    group = parser.add_argument_group('data', 'What lies in the folder of the data is recognised; the other options '
                                      'say what it cannot tell. Paths are below the folder, or absolute.')
    group.add_argument('--data-root', metavar='DIR', help='folder of the data set, for all loaders and evaluators')
    for part, words in (('train', 'training'), ('val', 'validation'), ('test', 'test')):
        group.add_argument(f'--{part}-images', metavar='DIR', help=f'folder of the {words} images')
        group.add_argument(f'--{part}-annotations', metavar='PATH', help='their annotation file, or the folder of '
                           'their label maps')
    group.add_argument('--val-share', type=float, metavar='SHARE', help='share of the images that is held out for '
                       'validation where there is no such part (default: 0.2); the same images in every run')
    group.add_argument('--palette', metavar='FILE', help='segmentation: names and colours of the classes, for label '
                       'maps in colour')
    group.add_argument('--ignore-label', type=int, nargs='+', default=[], metavar='LABEL', help='segmentation: labels '
                       'in the label maps that stand for no class')


def add_settings_options(parser: ArgumentParser):
    """Add the options of a training that users change most; all that depends on one follows."""
    group = parser.add_argument_group('settings', 'All that depends on one of them follows: pipelines, schedule, '
                                      'learning rate. The log says what was changed.')
    add_image_size_option(group)
    length = group.add_mutually_exclusive_group()
    length.add_argument('--epochs', type=int, metavar='N', help='length of the training; the schedule is stretched')
    length.add_argument('--iterations', type=int, metavar='N', help='likewise, in iterations')
    group.add_argument('--batch-size', type=int, metavar='N', help='images of a batch of each process; the learning '
                       'rate is scaled with it')
    group.add_argument('--lr', type=float, metavar='RATE', help='learning rate, which is not scaled then')
    group.add_argument('--workers', type=int, metavar='N', help='processes that read the data')
    group.add_argument('--augment', choices=('light', 'strong'), help='more augmentation than that of the config')


def add_image_size_option(parser):
    """Add the option of the size at which a model sees images, to a parser or a group of its options."""
    parser.add_argument('--image-size', type=int, nargs='+', metavar='PIXELS', help='the side of the square that '
                        'images are resized into, or width and height; for a classifier that of the crop')


def data_options(args) -> dict:
    """Return the values of `add_data_options` as arguments of `load_config`."""
    from ..data.layouts import DataOptions
    names = [f'{part}_{kind}' for part in ('train', 'val', 'test') for kind in ('images', 'annotations')]
    options = {name: getattr(args, name) for name in (*names, 'val_share', 'palette')}
    return dict(data_root=args.data_root, data=DataOptions(**options, ignore_label=tuple(args.ignore_label)))


def settings_of(args):
    """Return the values of `add_settings_options`."""
    from ..config.settings import Settings
    names = ('image_size', 'epochs', 'iterations', 'batch_size', 'lr', 'workers', 'augment')
    return Settings(**{name: getattr(args, name) for name in names}, auto_scale_lr=args.auto_scale_lr)


def add_overwrite_option(parser: ArgumentParser):
    """Add the option of the tools that write files elsewhere than into a work dir."""
    parser.add_argument('--overwrite', action='store_true',
                        help='replace files that this tool did not write; its own are replaced without')


def check_choices(option: str, values, known):
    """Raise `ConfigError` unless all values of an option are known; for choices that torch must be loaded to know."""
    for value in values:
        if value not in known:
            meant = nearest(value, known)
            raise ConfigError(f'{option} takes {", ".join(known)}, got {value!r}'
                              + (f'; did you mean {meant[0]}?' if meant else ''))


def set_run_options(cfg, args):
    """Put the values of `add_run_options` into the config; those of the data and the work dir are `load_config`'s.

    Raises:
        ConfigError: The launcher did not start this process.
    """
    from ..config.loading import default_work_dir
    if args.launcher == 'pytorch' and 'RANK' not in os.environ:
        raise ConfigError('--launcher pytorch is for processes that torchrun starts, such as torchrun '
                          '--nproc_per_node=2 tools/train.py ... --launcher pytorch; leave it out for one process')
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg.launcher = args.launcher
    if not cfg.get('work_dir'):
        cfg.work_dir = default_work_dir(args.config)


def _read_config_options(items, config):
    """Turn items ``KEY=VALUE`` into a dict, with values as mmengine reads them.

    Raises:
        ConfigError: An item is none, or holds a dict, or its brackets do not match.
    """
    from mmengine.config import DictAction

    from ..config.catalog import find_config
    options = {}
    for item in items or []:
        key, equals, value = item.partition('=')
        if not key or not equals:
            raise ConfigError(f'--cfg-options takes KEY=VALUE, such as train_cfg.val_interval=2, got {item!r}')
        if re.search(r'''(^|[\[(,])\s*(dict\(|\{\s*['"\w]+\s*:)''', value):
            base = find_config(config).absolute()
            raise ConfigError(f'--cfg-options takes no dicts, got {item!r}. Write it into a config file of your own '
                              f"and give that as CONFIG:\n  _base_ = '{base}'\n  {_as_python(key, value)}")
        reader = ArgumentParser()
        reader.add_argument('--read', nargs='+', action=DictAction)
        try:
            options.update(reader.parse_args(['--read', item]).read)
        except AssertionError:
            raise ConfigError(f'--cfg-options {item!r}: the brackets do not match; a list is written "{key}=[1,2]"'
                              ) from None
    return options


def _as_python(key, value):
    """Return the line of a config file that does what an option was meant to."""
    first, *parts = key.split('.')
    for part in reversed(parts):
        value = f'dict({part}={value})'
    return f'{first} = {value}'
