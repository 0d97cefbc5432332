"""Code that the tools share: options, and errors as one line instead of a traceback.

Nothing here or at the top of a tool imports torch or a framework, so that --help is fast.
"""
import errno
import gc
import os
import re
import sys
import warnings
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from contextlib import suppress
from dataclasses import fields
from math import isfinite

from .. import register, stop_as_usual
from .._utils.files import folder_of
from .._utils.text import nearest
from ..errors import ConfigError, Stopped, XCiTDenseError

#: Errors of writing, or of reading, that a user can mend.
_OF_PLACES = {getattr(errno, f'E{n}') for n in ('NOSPC', 'DQUOT', 'FBIG', 'ROFS', 'ACCES', 'PERM', 'NOTDIR', 'EXIST')}
_TYPE = r'auto|half|(b|fp?|bfp?|tf|b?float)\d*'  # what a user may take for a type
_ABOUT_ITSELF = '``build_loss`` would be deprecated|Default ``avg_non_ignore`` is False'  # warnings of mmseg


class Parser(ArgumentParser):
    """A parser with a short usage line, whose errors suggest the option that was meant."""

    def __init__(self, **options):
        super().__init__(allow_abbrev=False, formatter_class=RawDescriptionHelpFormatter, **options)

    def format_help(self):
        """Return the help, with the folder of the pages that it names; see argparse."""
        text = super().format_help()
        return text + f'\nThe folder docs is {folder_of("docs")}\n' * ('docs/' in text)

    def parse_args(self, args=None, namespace=None):
        """Read arguments, with options anywhere between the others; see argparse."""
        self._words = words = sys.argv[1:] if args is None else list(args)
        if any('--amp' in action.option_strings and action.choices for action in self._actions):  # CONFIG may follow
            words = ['--amp=auto' if word == '--amp' and not re.fullmatch(_TYPE, after) else word
                     for word, after in zip(words, [*words[1:], ''], strict=False)]
        self.usage = self.usage or f'%(prog)s {usage_of(self)}'
        namespace, unknown = self.parse_known_intermixed_args(words, namespace)
        if unknown:
            self.error(f'unrecognized arguments: {" ".join(unknown)}')
        return namespace

    def error(self, message):
        """Exit with a message and code 2."""
        known = re.findall(r'--[a-z][\w-]*', self.format_help())
        unknown = message.partition('unrecognized arguments: ')[2]
        folders = [word for word in unknown.split() if os.path.isdir(word)]
        if folders and '--data-root' in known and '--' not in unknown:
            message += f'; did you mean --data-root {folders[0]}?'
        for word in re.findall(r'--[\w-]+', unknown):
            if meant := nearest(word, known):
                message += f'; did you mean {meant[0]} instead of {word}?'
        if 'required: ' in message:
            message += ''.join(f'. {word} reads the {"word" if word == "--report" else "words"} after it: put it last'
                               for word in self._words if re.match('--report$|--.*-annotations$', word))
            words = self._words[self._words.index('--cfg-options') + 1:] if '--cfg-options' in self._words else []
            if swallowed := [word for word in words if '=' not in word]:
                message += f'. --cfg-options reads every word after it, including {swallowed[0]}: put it before'
        super().error(message)


def usage_of(parser) -> str:
    """Return what follows the name of a tool: its arguments, the options that it needs, and ``[options]``."""
    places = [action.metavar if action.required or action.nargs is None else f'[{action.metavar}]'
              for action in parser._actions if not action.option_strings]
    if '[CHECKPOINT]' in places:
        places[:2] = ['(WORK_DIR | CONFIG CHECKPOINT)']
    needed = [f'{action.option_strings[0]} {action.metavar}'
              for action in parser._actions if action.option_strings and action.required]
    return ' '.join([*places, *needed, '[options]'])


def run_tool(run, args):
    """Run a tool, ``run(args)``, once the package is loaded; raise `SystemExit` if it fails or is stopped.

    An error that a user can fix exits with one message and code 1, a signal with its own code.
    """
    code = 0
    try:
        warnings.filterwarnings('ignore', _ABOUT_ITSELF, module='mmseg')
        use_device(getattr(args, 'device', None), getattr(args, 'launcher', 'none'))
        stop_as_usual()
        if 'cfg_options' in args:
            from ..config.loading import read_config_options
            args.cfg_options = read_config_options(args.cfg_options, args.config)
        run(args)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        code = 128 + stopped.number
    except XCiTDenseError as error:
        sys.exit(f'error: {error}')
    except OSError as error:
        if error.errno not in _OF_PLACES:
            raise
        sys.exit(f'error: cannot read or write {error.filename or "the results"}: {error.strerror}. Check its '
                 'permissions and the disk space, or give another folder')
    except KeyboardInterrupt:
        hint = '; --resume continues from the last checkpoint, if there is one' if 'resume' in args else ''
        print(f'stopped{hint}', file=sys.stderr)
        sys.exit(130)
    from .._utils.processes import leave_group
    leave_group()  # after the exception, whose traceback holds the runner
    if code:
        sys.exit(code)


def use_device(name: str | None, launcher: str = 'none'):
    """Import the frameworks and run everything on ``cpu``, ``cuda`` or ``cuda:N``; on None, on a GPU if there is one.

    mmengine decides when it is imported, by the GPUs that CUDA shows; its parts and ours ask it, or CUDA. `ConfigError`
    if there is no such GPU, or several processes would share one.
    """
    _, _, number = (name or '').partition(':')
    if number and launcher != 'none':
        raise ConfigError(f'--device {name} is for one process: with --launcher, set CUDA_VISIBLE_DEVICES instead')
    seen = [gpu for gpu in os.environ.get('CUDA_VISIBLE_DEVICES', '').split(',') if gpu]
    if name == 'cpu' or number:
        chosen = [number] if number and not seen else seen[int(number):][:1] if number else []
        os.environ['CUDA_VISIBLE_DEVICES'] = ''.join(chosen) or '-1'
    if not register.cache_info().currsize:  # what is imported stays: searching it for garbage takes seconds
        gc.disable()
        register()
        gc.freeze()
        gc.enable()
    import torch
    from mmengine.device import utils
    if name == 'cpu':
        utils.DEVICE = 'cpu'  # it may have found another kind, such as Apple's
    elif name and not torch.cuda.is_available():
        raise ConfigError(f'--device {name}: torch finds no such GPU. Omit it, or use --device cpu')


def add_config_options(parser: ArgumentParser, checkpoint: bool = False):
    """Add the config, the checkpoint if wanted, and the options of every tool that builds a model."""
    parser.add_argument('config', metavar='CONFIG', help='name of a config, such as maskrcnn_xcit_s12_p8_coco, or path '
                        'of a config file' + '; or WORK_DIR: the work dir of a training has both' * checkpoint)
    if checkpoint:
        parser.add_argument('checkpoint', metavar='CHECKPOINT', nargs='?', help='weights of the whole model: a path, '
                            'a URL, xcit://NAME from docs/models.md, or a work dir (its best checkpoint)')
    parser.add_argument('--cfg-options', nargs='+', action='extend', metavar='KEY=VALUE',
                        help='change values of the config: a.b=value; write lists without spaces: a="[1,2]"')


def add_run_options(parser: ArgumentParser):
    """Add the options of the tools that run a data set through a model."""
    parser.add_argument('--work-dir', metavar='DIR', help='folder for the log and, in a training, checkpoints '
                        '(default: WORK_DIR if that is given, otherwise work_dirs/ and the name of the config)')
    add_data_options(parser)
    group = parser.add_argument_group('distributed runs', 'One process per GPU: docs/distributed.md.')
    group.add_argument('--launcher', choices=['none', 'pytorch', 'slurm', 'mpi'], default='none',
                       help='what starts the processes: pytorch for torch.distributed.run (torchrun), slurm for srun '
                       'with one task per GPU, mpi for mpirun (default: none, one process)')
    group.add_argument('--local_rank', '--local-rank', type=int, default=0, metavar='N',
                       help=SUPPRESS)  # set by torch.distributed.launch, not by users


def add_data_options(parser: ArgumentParser):
    """Add the options that say where the data is, and which part of it to use."""
    group = parser.add_argument_group('data', 'The layout of the data folder is recognised; the other options say '
                                      'what it does not show. Paths are relative to the data folder, or absolute.')
    group.add_argument('--data-root', '--data', metavar='DIR', help='folder of the data set')
    for part, words in (('train', 'training'), ('val', 'validation'), ('test', 'test')):
        group.add_argument(f'--{part}-images', metavar='DIR', help=f'folder of the {words} images')
        group.add_argument(f'--{part}-annotations', nargs='+', metavar='PATH', help=f'annotation file of the {words} '
                           'images (several are joined), or folder of their labels or label maps')
    # the default is VAL_SHARE of annotations/derived.py, which is slow to import
    group.add_argument('--val-share', type=finite, metavar='SHARE', help='share of the images to hold out for '
                       'validation if the data has no validation part, the same images in every run (default: 0.2)')
    group.add_argument('--instances', metavar='FORM', help='detection: pictures of masks have in each pixel the number '
                       'of an object (FORM: number), or class*1000+number as in Cityscapes, class*256+number as in '
                       'KITTI (default: recognised by the numbers)')
    group.add_argument('--class-name', metavar='NAME', help='name of the only class of masks as pictures (default: the '
                       'name of their folder)')
    group.add_argument('--palette', metavar='FILE', help='segmentation: names and colours of the classes, for label '
                       'maps in colour')
    group.add_argument('--ignore-label', type=int, nargs='+', default=(), metavar='LABEL', help='segmentation: labels '
                       'in the label maps that mean "no class"')


def add_settings_options(parser: ArgumentParser):
    """Add the options of a training that users change most, and on which other values of the config depend."""
    group = parser.add_argument_group('settings', 'Everything that depends on a setting is adjusted too: pipelines, '
                                      'schedule, learning rate. The log shows what was changed.')
    add_shared(group, 'image-size')
    length = group.add_mutually_exclusive_group()
    length.add_argument('--epochs', type=positive, metavar='N', help='length of the training; the schedule is scaled. '
                        'Converted for segmentation configs, which count iterations')
    length.add_argument('--iterations', type=positive, metavar='N', help='the same, in iterations. Converted to whole '
                        'epochs for the other configs, which count those')
    length.add_argument('--minutes', type=finite, metavar='N', help='the longest training that takes N minutes on this '
                        'machine, from the start of the command to its end; measured before it begins')
    add_shared(group, 'batch-size', 'workers')
    group.add_argument('--canvas', type=positive, nargs=2, metavar=('WIDTH', 'HEIGHT'), help='detection: pad each '
                       'batch of the training to this size or HEIGHT x WIDTH, so that few CUDA graphs do for all')
    group.add_argument('--lr', type=finite, metavar='RATE', help='learning rate; it is not scaled with the batch size')
    group.add_argument('--augment', choices=('light', 'strong'), help='replace the augmentation of the config: light '
                       'for small changes of scale and colour, strong for large ones; docs/training.md lists the '
                       'steps')


def data_options(args) -> dict:
    """Return the values of `add_data_options` as arguments of `load_config`."""
    from ..annotations import DataOptions
    return dict(data_root=args.data_root, data=_values(args, DataOptions))


def settings_of(args):
    """Return the values of `add_settings_options`."""
    from ..config.settings import Settings
    return _values(args, Settings)


def _values(args, kind):
    return kind(**{field.name: getattr(args, field.name) for field in fields(kind)})


def _device(text):
    if re.fullmatch(r'cpu|cuda(:\d+)?', text):
        return text
    raise ArgumentTypeError(f'must be cpu, cuda or cuda:N, got {text!r}')


#: Options that several tools have, by their names without dashes: what `add_shared` gives to argparse.
SHARED = {
    'amp': dict(nargs='?', const='auto', choices=('auto', 'bfloat16', 'float16'), help='train in mixed precision: in '
                'bfloat16 if the device multiplies in it (CPUs: AVX512-BF16 or AMX); on other GPUs, or as float16, '
                'with loss scaling. A resumed run keeps its type'),
    'batch-size': dict(type=int, metavar='N', help='images in a batch of each process; in a training, the learning '
                       'rate is scaled with it'),
    'workers': dict(type=int, metavar='N', help='number of processes that load the data, for each data loader of each '
                    'process; 0: that process loads it'),
    'image-size': dict(type=int, nargs='+', metavar='PIXELS', help='resize images to fit into a square of this side, '
                       'or into this width and height; classifiers: the side of the crop'),
    'config': dict(metavar='CONFIG', help='name or file of the training config, to use instead of the config in the '
                   'checkpoint; needed for your own backbone class, or if the checkpoint has no config and the model '
                   'differs from the published ones in size or normalisation'),
    'dtype': dict(choices=('float32', 'bfloat16'), default='float32', help='type of the computation; bfloat16 is up '
                  'to twice as fast and slightly less accurate, if the processor or GPU supports it (default: '
                  'float32)'),
    'no-graphs': dict(action='store_true', help='on a GPU: do not replay the backbone as CUDA graphs'),
    'runtime': dict(choices=('onnxruntime', 'openvino'), help='runtime for an exported file, .onnx (default: '
                    'onnxruntime)'),
    'device': dict(type=_device, metavar='DEVICE', help='cpu, cuda (a GPU) or cuda:N, the GPU with the number N from 0 '
                   '(default: a GPU if there is one)'),
    'overwrite': dict(action='store_true', help='also replace files that this tool did not write; its own are always '
                      'replaced')}


def add_shared(parser, *names: str):
    """Add some of `SHARED` to a parser or a group of its options; with ``dtype`` comes ``--amp``, its short form."""
    for name in names:
        parser.add_argument(f'--{name}', **SHARED[name])
        if name == 'dtype':
            parser.add_argument('--amp', dest='dtype', action='store_const', const='bfloat16',
                                help='the same as --dtype bfloat16')


def positive(text: str) -> int:
    """Read a whole number of at least 1, as the type of an option."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f'must be a whole number, at least 1, got {text!r}')
    return int(text)


def finite(text: str) -> float:
    """Read a number other than nan and inf, as the type of an option; what uses it checks its range."""
    with suppress(ValueError):
        if isfinite(number := float(text)):
            return number
    raise ArgumentTypeError(f'must be a number, got {text!r}')


def set_run_options(cfg, args):
    """Put the values of `add_run_options` into the config; those of the data and the work dir are `load_config`'s.
    `ConfigError` if the launcher did not start this process."""
    from ..config.loading import default_work_dir
    if args.launcher == 'pytorch' and 'RANK' not in os.environ:
        raise ConfigError('--launcher pytorch is only for processes that torchrun starts, for example: python -m '
                          'torch.distributed.run --nproc_per_node 2 -m xcit_dense TOOL ... --launcher pytorch. For one '
                          'process, omit it')
    os.environ.setdefault('LOCAL_RANK', str(args.local_rank))
    cfg.launcher = args.launcher
    if not cfg.get('work_dir'):
        cfg.work_dir = default_work_dir(args.config)
