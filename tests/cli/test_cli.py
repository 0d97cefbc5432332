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
    (['x'], 1, 'error: there is no tool x. The tools are adapt, attention, benchmark, ')))
def test_the_package_as_a_command_names_its_tools(args, code, words, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['xcit-dense', *args])
    if code:
        with pytest.raises(SystemExit) as end:
            main()
        output = end.value.code
    else:
        main()
        output = capsys.readouterr().out
    assert output.startswith(words or 'usage: xcit-dense TOOL ') and ('\n' in output) == (words is None)
    for name in tool_names() if words is None else ():  # a line each
        assert re.search(rf'^  {name} +[A-Z].*\.$', output, re.M), name


def test_every_tool_has_a_file_in_tools_and_help(call_tool):
    """With a usage of one line, its examples line by line, and the folder of the pages that it names."""
    files = {path.stem for path in (ROOT / 'tools').glob('*.py')}
    assert files == {*tool_names(), 'model_table'}
    for name in sorted(files):
        code, output = call_tool(f'{name}.py', '--help')
        assert code == 0 and re.match(rf'usage: {name}\.py (.*\[options\]|\[-h\].*)\n\n', output)
        assert (f'The folder docs is {ROOT / "docs"}\n' in output) == ('docs/' in output)
        if name == 'train':
            assert '\n    python -m xcit_dense train maskrcnn_xcit_s12_p16_custom --data-root DIR --resume\n' in output


@pytest.mark.parametrize('command, name', (
    (['tools/train.py', '--help'], 'train.py'), (['-m', 'xcit_dense', '--help'], 'python -m xcit_dense TOOL'),
    (['-u', '-m', 'xcit_dense', 'test', '--help'], 'python -m xcit_dense test'),
    ([str(SCRIPT), 'benchmark', '--help'], 'xcit-dense benchmark')))
def test_help_comes_at_once(command, name):
    """Without torch and the frameworks, which take seconds."""
    if command[0] == str(SCRIPT) and not SCRIPT.exists():
        pytest.skip('the package is not installed here')
    done = subprocess.run([sys.executable, '-X', 'importtime', *command], cwd=ROOT, text=True, capture_output=True,
                          env=environment())
    assert done.returncode == 0 and done.stdout.startswith(f'usage: {name} ')
    loaded = {line.rpartition('|')[2].strip() for line in done.stderr.splitlines()}
    assert 'xcit_dense.cli' in loaded and not loaded & {'torch', 'mmengine', 'numpy'}


@pytest.mark.integration
@pytest.mark.parametrize('place, run', (('tools/train.py', 'tools/train.py'), ('theirs/__init__.py', '-m theirs')))
def test_programs_of_others_register_the_backbone_by_the_import_alone(place, run, tmp_path):
    """With the package next to them, as in somebody's copy of mmdet."""
    (tmp_path / 'xcit_dense').symlink_to(ROOT / 'xcit_dense')
    for folder in ('tools', 'theirs'):
        (tmp_path / folder).mkdir()
    (tmp_path / 'theirs/__main__.py').touch()
    (tmp_path / place).write_text('import xcit_dense\nfrom mmengine.registry import HOOKS, MODELS\n'
                                  "print(MODELS.get('XCiT'), HOOKS.get('StartupHook'), xcit_dense.__file__)\n")
    done = subprocess.run([sys.executable, *run.split()], cwd=tmp_path, text=True, capture_output=True,
                          env={**os.environ, 'PYTHONPATH': str(tmp_path)})
    assert done.stdout.strip() == (
        "<class 'xcit_dense.models.backbone.XCiT'> <class 'xcit_dense.train.startup.StartupHook'> "
        f'{tmp_path}/xcit_dense/__init__.py'), done.stderr
