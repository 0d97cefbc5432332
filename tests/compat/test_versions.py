"""Errors about missing and wrong versions."""
import re
import shlex
import subprocess
import sys
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from helpers.paths import ROOT
from helpers.tools import environment
from xcit_dense.compat import versions
from xcit_dense.compat.versions import STACKS, check_versions, extras, reinstall_mmcv, requirements
from xcit_dense.errors import SetupError

INSTALLED = {'torch': '2.14.1', 'torchvision': '0.29.2', 'mmengine': '0.10.7', 'mmcv-lite': '2.1.0',
             'mmdet': '3.3.0', 'mmsegmentation': '1.2.2'}
FORKS = {'torch': '2.14.1', 'torchvision': '0.29.2', 'onedl-mmengine': '0.10.12', 'onedl-mmcv': '2.3.6',
         'onedl-mmdetection': '3.5.1', 'onedl-mmsegmentation': '1.4.2'}
CLASSIFICATION = {'mmpretrain': '1.2.0', 'transformers': '4.49.0'}


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these distributions are installed; the check reads only their metadata."""

    def pretend(packages):
        def version(name):
            if name not in packages:
                raise metadata.PackageNotFoundError(name)
            return packages[name]

        monkeypatch.setattr(versions.metadata, 'version', version)

    return pretend


def without(packages, *names, **others):
    """The packages without some and with others; their names have _ in place of -."""
    return {**{name: version for name, version in packages.items() if name not in names},
            **{name.replace('_', '-'): version for name, version in others.items()}}


def test_versions_that_work(installed):
    for packages in (  # the last three are mixtures that train
            INSTALLED, FORKS, without(INSTALLED, 'mmcv-lite', mmcv='2.1.0', torch='2.15.0.dev20261120+cu132'),
            without(INSTALLED, 'mmengine', onedl_mmengine='0.10.12'),
            without(FORKS, 'onedl-mmengine', mmengine='0.10.7'), without(FORKS, 'onedl-mmcv', mmcv_lite='2.1.0')):
        installed(packages)
        check_versions('mmdet', 'mmseg')
    # mmdet and mmseg are not needed unless asked for, and a newer mmcv works if nothing rejects it
    installed(without(INSTALLED, 'mmcv-lite', 'mmdet', 'mmsegmentation', mmcv='2.2.0'))
    check_versions()


def follow(command, packages):
    """Apply a command to some packages; return what is installed then, and the options of pip in the command."""
    packages, known = dict(packages), {**INSTALLED, **FORKS, **CLASSIFICATION, 'mmcv': '2.1.0'}
    for part in command.split(' && '):
        pip, action, *words = shlex.split(part)
        assert pip == 'pip' and action in ('install', 'uninstall')
        for word in (word for word in words if not word.startswith('-')):
            if action == 'uninstall':
                packages.pop(word)
            else:
                asked = Requirement(word)
                packages[asked.name] = known.get(asked.name, '1.0')
                assert asked.specifier.contains(packages[asked.name])
    return packages, {word for word in shlex.split(command) if word.startswith('-')}


@pytest.mark.parametrize('packages, words, wanted', (
    (without(INSTALLED, 'mmsegmentation'), ('mmseg is not installed', ), {**INSTALLED, 'ftfy': '1.0', 'regex': '1.0'}),
    (without(INSTALLED, mmdet='2.28.2'), ('mmdet 2.28.2', '>=3.2,<4'), INSTALLED),
    (without(INSTALLED, torch='2.5.1'), ('torch 2.5.1', '>=2.6'), INSTALLED),
    (without(INSTALLED, 'mmcv-lite', mmcv='2.2.0'), ('mmdet 3.3.0', '<2.2', 'mmcv 2.2.0', 'mmsegmentation 1.2.2'),
     INSTALLED),
    # the other kind of the same stack goes, or the two would overwrite each other
    (without(INSTALLED, 'mmengine', 'mmcv-lite', mmengine_lite='0.10.7'), ('mmcv is not installed', ), INSTALLED),
    # among forks, forks
    (without(FORKS, 'onedl-mmcv'), ('mmcv is not installed', ), FORKS),
    (without(FORKS, 'onedl-mmdetection', mmdet='3.3.0'), ('mmdet 3.3.0', '<2.2', 'onedl-mmcv 2.3.6'), FORKS),
    # twice the same folder
    (without(INSTALLED, mmcv='2.1.0'), ('mmcv-lite 2.1.0', 'mmcv 2.1.0', 'together'), INSTALLED),
    # a fork of mmcv brings its mmengine, and the original mmdet and mmseg reject it
    (without(INSTALLED, onedl_mmcv='2.3.6'), ('mmcv-lite 2.1.0', 'onedl-mmcv 2.3.6', 'together'), FORKS)))
def test_what_does_not_work_is_one_error_and_its_fix_fixes_it(installed, packages, words, wanted):
    installed(packages)
    with pytest.raises(SetupError) as caught:
        check_versions('mmdet', 'mmseg')
    problem, _, fix = str(caught.value).partition('Fix it with: ')
    assert all(word in problem for word in words)
    assert ('torchvision' in fix) == ('torch 2' in problem)  # the two are compiled for each other
    assert follow(fix, packages)[0] == wanted
    installed(wanted)
    check_versions('mmdet', 'mmseg')


@pytest.mark.parametrize('stack, others, words', (
    (INSTALLED, {}, ('mmpretrain is not installed', 'transformers is not installed')),
    (FORKS, dict(mmpretrain='1.2.0', transformers='5.1.0'), ('transformers 5.1.0', '<5'))))
def test_what_classifiers_need_is_minded_for_them_alone(installed, stack, others, words):
    """A separate extra: neither stack requires it, and a wrong version stops no detector."""
    installed({**stack, **others})
    check_versions('mmdet', 'mmseg')
    with pytest.raises(SetupError) as caught:
        check_versions(*CLASSIFICATION)
    problem, _, fix = str(caught.value).partition('Fix it with: ')
    assert all(word in problem for word in words)
    assert follow(fix, {**stack, **others})[0] == {**stack, **CLASSIFICATION}
    assert [Requirement(line).name for line in extras()['classification']] == list(CLASSIFICATION)
    assert not {Requirement(line).name for name in STACKS for line in extras()[name]} & {*CLASSIFICATION}


def test_mmcv_is_reinstalled_from_the_same_stack(installed):
    """No wheel from the cache, which may have been built against another torch, and nothing else changed."""
    for packages, compiled, wanted in (
            (INSTALLED, False, INSTALLED), (INSTALLED, True, without(INSTALLED, 'mmcv-lite', mmcv='2.1.0')),
            (FORKS, False, FORKS), (FORKS, True, FORKS)):
        installed(packages)
        command = reinstall_mmcv(compiled=compiled)
        uninstalled, _ = follow(command.partition(' && ')[0], packages)
        assert set(packages) - set(uninstalled) == {'mmcv-lite' if packages is INSTALLED else 'onedl-mmcv'}
        fixed, options = follow(command, packages)
        assert fixed == wanted and options >= {'--no-deps', '--no-cache-dir'}
        assert ('--no-build-isolation' in options) == compiled  # it is built against the torch that is installed


def last_line_of(code):
    """Run code that must fail in a fresh process; return its output and the last line of its error."""
    done = subprocess.run([sys.executable, '-c', code], text=True, capture_output=True, env=environment())
    assert done.returncode == 1
    return done.stdout, done.stderr.strip().splitlines()[-1]


@pytest.mark.integration
@pytest.mark.parametrize('code, framework', (
    ('import xcit_dense; print("imported"); xcit_dense.XCiT', 'torch'), ('import xcit_dense', 'mmengine'),
    *((f'import runpy; sys.argv = ["train.py", "x"]; runpy.run_path({str(ROOT / "tools/train.py")!r}, '
       'run_name="__main__")', framework) for framework in ('torch', 'mmengine')),
    ('from mmengine.config import Config; Config.fromstring("custom_imports = dict(imports=[\'xcit_dense\'])", ".py")',
     'mmcv')))
def test_missing_framework_is_the_one_thing_said(code, framework):
    """Really without it: missing for the metadata and for imports, in a fresh process."""
    hidden = [distribution for stack in STACKS.values() for distribution in stack[framework]]
    out, last = last_line_of(f'''
import sys
from importlib import metadata
real = metadata.version
def version(name):
    if name in {hidden!r}: raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
sys.modules[{framework!r}] = None
{code}
''')
    stack = 'onedl' if 'onedl-mmengine' in {d.metadata['Name'] for d in metadata.distributions()} else 'openmmlab'
    asked = shlex.quote(requirements(stack)[framework][0])
    assert f'{framework} is not installed' in last and f'pip install {asked}' in last
    assert ('imported' in out) == ('imported' in code)  # without torch the runtime is what the package has


@pytest.mark.integration
def test_compiled_ops_built_for_another_torch_are_named(tmp_path):
    (tmp_path / 'broken.so').write_bytes(b'no library')
    _, last = last_line_of(f'''
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'mmcv._ext':
            return importlib.util.spec_from_file_location(name, {str(tmp_path / "broken.so")!r})
sys.meta_path.insert(0, Finder())
import xcit_dense
''')
    assert "mmcv's compiled ops do not load" in last
    assert reinstall_mmcv(compiled=False) in last and reinstall_mmcv(compiled=True) in last


def test_pins_lie_in_the_ranges_that_the_package_accepts():
    pins, forks = (dict(re.findall(r'^([\w-]+)==([\w.]+)', (ROOT / name).read_text(), re.M))
                   for name in ('requirements.txt', 'requirements-onedl.txt'))
    assert not pins.keys() & forks.keys()
    # the Makefile puts the forks in the place of those
    assert {name for name in pins if name.startswith('mm')} == {
        'mmengine', 'mmcv-lite', 'mmdet', 'mmsegmentation', 'mmpretrain'}
    for stack, pinned in (('openmmlab', pins), ('onedl', {**pins, **forks})):
        for requirement in (Requirement(asked[0]) for asked in requirements(stack).values()):
            assert requirement.specifier.contains(pinned[requirement.name])
