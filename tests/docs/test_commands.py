"""Every command in the fences of README and docs can be read by its tool; those that can run here are run in order."""
from contextlib import suppress

import pytest

from helpers.documented import NotClaimed, check_names, parse, read_command
from helpers.pages import commands, fences

FENCES = fences('bash')
#: Every command of the fences, once.
COMMANDS = {command.text: command for fence in FENCES for command in commands(fence.code)}


def runs_of(fence):
    """What of a fence is run here: pairs of a tool and its `Command`."""
    for command in commands(fence.code):
        with suppress(NotClaimed):  # `test_each_command_can_be_read` says so
            tool, _, reason = read_command(command.words)
            if not reason:
                yield tool, command


RUNS = [list(runs_of(fence)) for fence in FENCES]


def is_slow(fence, runs):
    """Whether a fence takes long: an exported file, or several trainings outside of the README."""
    trainings = sum(tool == 'train' for tool, _ in runs)
    return '.onnx' in fence.code or fence.page != 'README.md' and trainings > 1


def test_fences_of_commands_are_found():
    assert len(COMMANDS) > 30 and sum(map(len, RUNS)) > 25


@pytest.mark.parametrize('text', COMMANDS)
def test_each_command_can_be_read(text):
    tool, words, _ = read_command(COMMANDS[text].words)
    if tool:
        check_names(tool, parse(tool, words))


@pytest.mark.parametrize('fence, runs', [
    pytest.param(fence, runs, id=f'{fence.page}-{fence.section}', marks=[pytest.mark.slow] * is_slow(fence, runs))
    for fence, runs in zip(FENCES, RUNS, strict=True) if runs])
def test_the_commands_of_a_fence_run_in_order(fence, runs, place):
    if ' xcit_' in fence.code:
        pytest.importorskip('mmpretrain')  # the forks have none
    place.code = fence.code
    for tool, command in runs:
        words = read_command(command.words)[1]
        done = place.run(tool, place.prepare(tool, words, parse(tool, words)), command.variables, check=False)
        assert done.returncode == 0, f'{fence.page}: {command.text}\n{done.stdout[-6000:]}'
