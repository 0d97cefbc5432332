"""Every fence of README and docs has a test; tools can read its commands, and those that run here are run."""
import re
from contextlib import suppress

import pytest
from docs.documented import ELSEWHERE, NotClaimed, check_names, parse, read_command
from docs.pages import PAGES, commands, fences, name_of

FENCES = fences('bash')
#: Every command of the fences, once.
COMMANDS = {command.text: command for fence in FENCES for command in commands(fence.code)}
#: Tools that run for more than a second, or are in a fence with others that do.
SLOW_TOOLS = {'attention', 'export', 'test', 'train'}


def runs_of(fence):
    """What of a fence is run here: pairs of a tool and its `Command`."""
    for command in commands(fence.code):
        with suppress(NotClaimed):  # `test_each_command_can_be_read` says so
            tool, words, reason = read_command(command.words)
            if not reason and not ELSEWHERE & {*words}:
                yield tool, command


#: Of each fence; none where every command was in another before.
RUNS, before = [], set()
for each in FENCES:
    texts = {command.text for _, command in runs_of(each)}
    RUNS.append([] if texts <= before else list(runs_of(each)))
    before |= texts


def test_pages_and_fences_are_found():
    assert {'README.md', 'docs/own_data.md', 'tests/README.md'} <= set(map(name_of, PAGES)) and len(fences()) > 40
    assert len(COMMANDS) > 30 and sum(map(len, RUNS)) > 25


def test_every_fence_names_its_language():
    """Directives of the website, such as {toctree}, are checked where it is built."""
    wrong = [fence for fence in fences() if not re.match(r'(bash|python|text|bibtex)$|\{', fence.language)]
    assert not wrong, ('commands are ```bash and are run, Python and configs ```python and are run; output, other code '
                       'and files ```text, and are not')
    hidden = [(fence.page, line) for fence in fences('text') for line in fence.code.splitlines()
              if line.startswith(('python -m xcit_dense', 'python tools/', 'make ')) and '[options]' not in line]
    assert not hidden, 'commands are ```bash, so that a test runs them'


@pytest.mark.parametrize('text', COMMANDS)
def test_each_command_can_be_read(text):
    tool, words, _ = read_command(COMMANDS[text].words)
    if tool:
        check_names(tool, parse(tool, words))


@pytest.mark.parametrize('fence, runs', [
    pytest.param(fence, runs, id=f'{fence.page}-{fence.section}',
                 marks=[pytest.mark.slow] * any(tool in SLOW_TOOLS for tool, _ in runs))
    for fence, runs in zip(FENCES, RUNS, strict=True) if runs])
def test_the_commands_of_a_fence_run_in_order(fence, runs, place):
    if ' xcit_' in fence.code:
        pytest.importorskip('mmpretrain')  # the forks have none
    for tool, command in runs:
        words = read_command(command.words)[1]
        done = place.run(tool, place.prepare(tool, words, parse(tool, words)), command.variables, check=False)
        assert done.returncode == 0, f'{fence.page}: {command.text}\n{done.stdout[-6000:]}'
