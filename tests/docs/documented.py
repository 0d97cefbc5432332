"""Which tool a command of the documentation calls, what it reads from the line, and why some are not run."""
import io
import re
import runpy
from contextlib import redirect_stdout, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from unittest import mock

from torch.distributed.run import get_args_parser

from helpers.paths import ROOT
from xcit_dense.cli import common, tool_names
from xcit_dense.config.loading import list_models
from xcit_dense.weights.zoo import PREFIX, get_weights

#: Programs that are not ours: why their commands are not run. A new one needs a line here.
OTHER_PROGRAMS = {'make': 'minutes', 'pip': 'network', 'git': 'network', 'curl': 'network', 'cd': 'shell', '.': 'shell',
                  'pytest': 'tests', 'service.py': 'tested in test_runtime_alone.py',
                  'run.py': 'tested in test_launches.py'}
#: Our tools that are not run: why. Their own tests run them.
NOT_RUN = dict(adapt='a stock config', benchmark='minutes', measure='minutes', model_table='writes pages')
#: Options that are taken out before a command is run: why.
DROPPED = {'--amp': 'processor', '--compile': 'compiler'}
#: Options of data in layouts that tests/annotations makes and trains on: commands with them are not run.
ELSEWHERE = {'--palette', '--train-images', '--ignore-label', '--instances', '--class-name'}
#: Starts of a command that are not run themselves, so that the rest is only read: why.
LAUNCHERS = {'torch.distributed.run': 'processes', 'torchrun': 'processes', 'slurm_train.sh': 'Slurm'}


class NotClaimed(AssertionError):
    """A command that no rule covers."""


def program_of(words):
    """Return the name of the program that is called, without ``python``, and the words after it."""
    first, *rest = words
    if re.fullmatch(r'(.*/)?python[\d.]*', first):
        first, *rest = rest[1:] if rest[:1] == ['-m'] else rest
    if first in ('bash', 'sbatch', 'srun'):
        rest = [*rest]
        while rest and not rest[0].endswith('.sh'):
            rest.pop(0)  # options of Slurm
        first, *rest = rest or [first]
    return Path(first).name or first, rest


def read_command(words):
    """Return the name of our tool that a command calls, or None, its arguments, and why it is not run, or ''."""
    program, rest = program_of(words)
    if program in ('xcit_dense', 'xcit-dense'):
        if not rest or rest[0] not in tool_names():
            raise NotClaimed(f'{" ".join(words)}: there is no tool {" ".join(rest[:1])!r}')
        return rest[0], rest[1:], NOT_RUN.get(rest[0], '')
    if program == 'slurm_train.sh':
        return 'train', rest, LAUNCHERS[program]
    if program in LAUNCHERS:
        args = get_args_parser().parse_args(rest)
        start = ['-m'] * args.module + [args.training_script, *args.training_script_args]
        return *read_command(['python', *start])[:2], LAUNCHERS[program]
    tool = program.removesuffix('.py')
    if program.endswith('.py') and (ROOT / 'tools' / program).is_file():
        return tool, rest, NOT_RUN.get(tool, '')
    if program in OTHER_PROGRAMS:
        _check_other(program, rest)
        return None, rest, OTHER_PROGRAMS[program]
    raise NotClaimed(f'{" ".join(words)}: no test runs {program!r}. If it is one of our tools, write it as python -m '
                     'xcit_dense TOOL; if it cannot be run here, give it a line with the reason in OTHER_PROGRAMS of '
                     'tests/docs/documented.py; if it is no command, write the fence as ```text')


def module_of(tool):
    of_repository = dict(benchmark='benchmarks.tool', measure='benchmarks.measure')
    return import_module(of_repository.get(tool, f'xcit_dense.cli.{tool}'))


def parse(tool, words):
    """Return what a tool reads from its arguments; it ends with an error of argparse where they are wrong."""
    if tool in tool_names():
        module = module_of(tool)
        with mock.patch.object(module if hasattr(module, 'run_tool') else common, 'run_tool') as run:  # it gets both
            module.main(list(words))
        return run.call_args.args[1]
    return runpy.run_path(str(ROOT / f'tools/{tool}.py'))['read_options'](list(words))


@cache
def help_of(tool):
    """Return what ``--help`` of a tool prints; of `predict` that for exported files too."""
    printed = io.StringIO()
    for words in ([], ['model.onnx']) if tool == 'predict' else ([], ):
        with redirect_stdout(printed), suppress(SystemExit):
            parse(tool, [*words, '--help'])
    return printed.getvalue()


def check_names(tool, args):
    """Check that the config and the published files that a command names are there."""
    config = getattr(args, 'config', None) or ''
    # a name by our own grammar; any other is a file of the user's
    is_ours = '_xcit_' in f'_{config}' and '/' not in config.removeprefix('configs/')
    if is_ours and Path(config).stem not in list_models():
        raise NotClaimed(f'there is no config {config}')
    if tool in ('attention', 'classify') and not re.search(r'[/.]|^[A-Z_]+$', args.checkpoint):
        get_weights(args.checkpoint)  # these take a name without the prefix
    for value in vars(args).values():
        if str(value).startswith(PREFIX):
            get_weights(value)


def _check_other(program, words):
    """Check what a command of another program names of this repository."""
    if program == 'make':
        targets = re.findall(r'^([\w-]+):', (ROOT / 'Makefile').read_text(), re.M)
        wrong = [word for word in words if '=' not in word and not word.startswith('-') and word not in targets]
    elif program == 'pip':
        setup = (ROOT / 'setup.py').read_text() + (ROOT / 'xcit_dense/compat/versions.py').read_text()
        extras = re.findall(r'^(?:\.|xcit_dense)\[([\w,]+)\]$', '\n'.join(words), re.M)
        wrong = [name for extra in extras for name in extra.split(',') if not re.search(rf"\b{name}\b'?[:=]", setup)]
        wrong += [word for word in words if word.endswith('.txt') and not (ROOT / word).is_file()]
    else:
        wrong = [word for word in words if word.startswith('tests/') and not (ROOT / word.partition('::')[0]).exists()]
    if wrong:
        raise NotClaimed(f'{program} {" ".join(words)}: there is no {", ".join(wrong)}')
