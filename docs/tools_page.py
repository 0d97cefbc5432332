"""Renew docs/tools.md, the page of all tools and options, from their parsers."""
import argparse
import re
import sys
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from unittest.mock import patch

from xcit_dense.cli import tool_names
from xcit_dense.cli.common import Parser, run_tool, usage_of

PAGE = 'docs/tools.md'
_HEAD = '''# Tools

<!-- made by docs/tools_page.py from the parsers of the tools -->

`python -m xcit_dense TOOL`, `xcit-dense TOOL` and, in the source folder, `python tools/TOOL.py` are the same.
`TOOL --help` prints what is on this page. What the options are good for: [training](training.md),
[predicting](predicting.md), [attention](attention.md), [weights](weights.md), [deploying](deploying.md),
[benchmark](benchmark.md). Slurm: [`tools/slurm_train.sh`](distributed.md#slurm).

| exit code | meaning |
|---|---|
| 0 | all went well |
| 1 | an error, which the last lines on stderr explain; some files could not be read; a metric is below `--at-least` |
| 2 | a wrong option |
| 130 | stopped by Ctrl-C; other signals: 128 plus their number (143 for SIGTERM) |
'''


class _Found(Exception):
    """Carries a parser out of the function that builds it."""

    def __init__(self, parser):
        super().__init__()
        self.parser = parser


def parser_of(main) -> argparse.ArgumentParser:
    """Return the parser that a tool's ``main(argv)`` builds, without running the tool."""

    def stop(parser, *_):
        raise _Found(parser)

    with patch.object(Parser, 'parse_args', stop):
        try:
            main([])
        except _Found as found:
            return found.parser
    raise AssertionError(f'{main.__module__} reads no options')


def parsers() -> dict:
    """Return the parser of each tool, by its name."""
    return {name: parser_of(import_module(f'xcit_dense.cli.{name}').main) for name in tool_names()}


def make_page() -> str:
    """Return the text of the page; an option that is the same in several tools is described once, at its end."""
    known, found = parsers(), {}
    for parser in known.values():
        for group in parser._action_groups:
            for action in _shown(group._group_actions):
                found.setdefault(_row(action, parser), []).append((action, group.description, parser))
    found = {row: places for row, places in found.items() if len(places) > 1 and places[0][0].option_strings}
    lines = [_HEAD, *(part for name, parser in known.items() for part in _section(name, parser, found))]
    lines.append('## Shared options\n')
    for about in dict.fromkeys(places[0][1] for places in found.values()):
        rows = sorted(row for row, places in found.items() if places[0][1] == about)
        lines += [f'{_text(about, found[rows[0]][0][2])}\n'] * bool(about)
        lines += ['| option | meaning |\n|---|---|', *rows, '']
    return '\n'.join(lines)


def _shown(actions):
    return [action for action in actions if action.help is not argparse.SUPPRESS and action.dest != 'help']


def _row(action, parser):
    return f'| {_names(action)} | {_text(action.help, parser, action)} |'


def _section(name, parser, shared):
    yield f'## {name}\n'
    for part in parser.description.strip().split('\n\n'):
        yield f'```bash\n{dedent(part)}\n```\n' if part.startswith('  ') else f'{_text(part, parser)}\n'
    yield f'```text\npython -m xcit_dense {name} {usage_of(parser)}\n```\n'
    also = []
    for group in parser._action_groups:
        rows = {_row(action, parser): action for action in _shown(group._group_actions)}
        also += [f'`{name}`' for row, action in rows.items() if row in shared for name in action.option_strings]
        rows = {row: action for row, action in rows.items() if row not in shared}
        if not rows:
            continue
        if group.description:
            yield f'**{group.title.capitalize()}.** {_text(group.description, parser)}\n'
        named = 'option' if next(iter(rows.values())).option_strings else 'argument'
        yield f'| {named} | meaning |\n|---|---|'
        yield from rows
        yield ''
    if also:
        yield f'Also, as in other tools: {", ".join(sorted(also))}. [Shared options](#shared-options)\n'
    if parser.epilog:
        yield f'{_text(parser.epilog, parser)}\n'


def _names(action):
    value = _value(action) if action.nargs != 0 else ''
    names = action.option_strings or [value]
    if action.option_strings and value:
        names = [f'{name} {value}' for name in names]
    return ', '.join(f'`{name}`' for name in names).replace('|', '\\|')


def _value(action):
    """Return what a user gives, as in a usage line."""
    choices = action.choices and '{' + ','.join(map(str, action.choices)) + '}'
    name = action.metavar or choices or (action.dest.upper() if action.option_strings else action.dest)
    names = [name] if isinstance(name, str) else list(name)
    if isinstance(action.nargs, int):
        return ' '.join((names * action.nargs)[:max(action.nargs, 1)])
    return {None: '{0}', '?': '[{0}]', '*': '[{0} ...]', '+': '{0} [{0} ...]'}[action.nargs].replace('{0}', names[0])


def _text(text, parser, action=None):
    values = dict(vars(action) if action else {}, prog=parser.prog)
    text = ' '.join((text or '').split())
    text = text % values if action else text.replace('%(prog)s', parser.prog)
    text = text.replace('|', '\\|').replace('*', '\\*').replace('<', '&lt;')
    if isinstance(action and action.default, int | float | str) and not isinstance(action.default, bool) \
            and 'default' not in text and action.default != '' and action.default is not argparse.SUPPRESS:
        text += f' (default: {action.default})'
    text = re.sub(r'\bdocs/(\w+\.md)', r'[docs/\1](\1)', text)
    return re.sub(r'(?<![`\w-])(--[a-z][\w-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)', r'`\1`', text)


def read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--check', action='store_true', help='write nothing; exit with 1 if the page is not up to date')
    return parser.parse_args(argv)


def write_or_check(args):
    path, text = Path(__file__).resolve().parents[1] / PAGE, make_page()
    if path.is_file() and path.read_text() == text:
        return
    if args.check:
        sys.exit(f'error: {PAGE} is not up to date: run python docs/tools_page.py')
    path.write_text(text)
    print(f'wrote {PAGE}')


if __name__ == '__main__':
    run_tool(write_or_check, read_options(None))
