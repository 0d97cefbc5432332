"""The command line: its three names, its tools, and help without loading torch."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.paths import ROOT
from helpers.tools import environment
from xcit_dense.cli import main, tool_names

SCRIPT = Path(sys.executable).parent / 'xcit-dense'


@pytest.mark.parametrize('args, code, words', (
    (['--help'], 0, None), (['-h'], 0, None), ([], 1, None),
    (['trian'], 1, 'error: there is no tool trian; did you mean train?'),
    (['x'], 1, 'error: there is no tool x. The tools are adapt, attention, benchmark, '),
))
def test_the_package_as_a_command_names_its_tools(args, code, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['xcit-dense', *args])
    try:
        main()
    except SystemExit as end:
        output = end.code
    else:
        output = capsys.readouterr().out
        assert code == 0
    if words is None:
        assert output.startswith('usage: xcit-dense TOOL ')
        for name in tool_names():  # a line each
            assert re.search(rf'^  {name} +[A-Z].*\.$', output, re.M), name
    else:
        assert output.startswith(words) and '\n' not in output


def test_every_tool_has_a_file_in_tools_and_help(call_tool):
    files = {path.stem for path in (ROOT / 'tools').glob('*.py')}
    assert files == {*tool_names(), 'model_table'}
    for name in sorted(files):
        code, output = call_tool(f'{name}.py', '--help')
        assert code == 0 and output.startswith(f'usage: {name}.py')


@pytest.mark.parametrize('command', (
    ['tools/train.py', '--help'], ['-m', 'xcit_dense', '--help'], ['-u', '-m', 'xcit_dense', 'test', '--help'],
    [str(SCRIPT), 'benchmark', '--help']), ids=' '.join)
def test_help_comes_at_once(command):
    """Without torch and the frameworks, which take seconds."""
    if command[0] == str(SCRIPT) and not SCRIPT.exists():
        pytest.skip('the package is not installed here')
    done = subprocess.run([sys.executable, '-X', 'importtime', *command], cwd=ROOT, text=True, capture_output=True,
                          env=environment())
    assert done.returncode == 0 and done.stdout.startswith('usage: ')
    loaded = {line.rpartition('|')[2].strip() for line in done.stderr.splitlines()}
    assert 'xcit_dense.cli' in loaded and not loaded & {'torch', 'mmengine', 'numpy'}


@pytest.mark.integration
@pytest.mark.parametrize('place, run', (
    ('tools/train.py', 'tools/train.py'), ('theirs/__init__.py', '-m theirs'), ('xcit-dense.py', 'xcit-dense.py')))
def test_programs_of_others_register_the_backbone_by_the_import_alone(place, run, tmp_path):
    """With the package next to them, as in somebody's copy of mmdet."""
    (tmp_path / 'xcit_dense').symlink_to(ROOT / 'xcit_dense')
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text('import xcit_dense\nfrom mmengine.registry import HOOKS, MODELS\n'
                                  "print(MODELS.get('XCiT'), HOOKS.get('StartupHook'), xcit_dense.__file__)\n")
    (tmp_path / 'theirs').mkdir(exist_ok=True)
    (tmp_path / 'theirs/__main__.py').touch()
    done = subprocess.run([sys.executable, *run.split()], cwd=tmp_path, text=True, capture_output=True,
                          env={**os.environ, 'PYTHONPATH': str(tmp_path)})
    assert done.stdout.strip() == (
        "<class 'xcit_dense.models.backbone.XCiT'> <class 'xcit_dense.train.startup.StartupHook'> "
        f'{tmp_path}/xcit_dense/__init__.py'), done.stderr
