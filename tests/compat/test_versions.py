"""What the package says of missing and wrong versions."""
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
from xcit_dense.compat.frameworks import STACKS, requirements
from xcit_dense.compat.versions import check_versions, reinstall_mmcv
from xcit_dense.errors import SetupError

INSTALLED = {'torch': '2.14.1', 'torchvision': '0.29.2', 'mmengine': '0.10.7', 'mmcv-lite': '2.1.0',
             'mmdet': '3.3.0', 'mmsegmentation': '1.2.2'}
FORKS = {'torch': '2.14.1', 'torchvision': '0.29.2', 'onedl-mmengine': '0.10.12', 'onedl-mmcv': '2.3.6',
         'onedl-mmdetection': '3.5.1', 'onedl-mmsegmentation': '1.4.2'}


@pytest.fixture
def installed(monkeypatch):
    """Pretend that these distributions are installed; what the check reads is their metadata alone."""

    def pretend(packages):

        def version(name):
            if name not in packages:
                raise metadata.PackageNotFoundError(name)
            return packages[name]

        monkeypatch.setattr(versions.metadata, 'version', version)

    return pretend


def without(packages, *names, **others):
    """The packages without those named, and with others, whose names are written with _ for -."""
    return {**{name: version for name, version in packages.items() if name not in names},
            **{name.replace('_', '-'): version for name, version in others.items()}}


@pytest.mark.parametrize('packages', (
    INSTALLED,
    FORKS,
    without(INSTALLED, torch='2.15.0+cu132'),
    without(INSTALLED, 'mmcv-lite', mmcv='2.1.0'),
    # mixtures that train
    without(INSTALLED, 'mmengine', onedl_mmengine='0.10.12'),
    without(FORKS, 'onedl-mmengine', mmengine='0.10.7'),
    without(FORKS, 'onedl-mmcv', mmcv_lite='2.1.0'),
))
def test_versions_that_work(installed, packages):
    installed(packages)
    check_versions('mmdet', 'mmseg')


def test_newer_mmcv_works_where_nothing_refuses_it(installed):
    installed(without(INSTALLED, 'mmcv-lite', 'mmdet', 'mmsegmentation', mmcv='2.2.0'))
    check_versions()


LITE, FORK_ENGINE, FORK_MMCV, FORK_MMDET, FORK_MMSEG = (
    "'mmcv-lite>=2.0.1,<2.2'", "'onedl-mmengine>=0.10.8,<1'", "'onedl-mmcv>=2.3,<3'", "'onedl-mmdetection>=3.4,<4'",
    "'onedl-mmsegmentation>=1.3,<2'")


@pytest.mark.parametrize('packages, problem, mend', (
    (without(INSTALLED, 'mmcv-lite'), 'mmcv is not installed', f'pip install {LITE}'),
    (without(INSTALLED, 'mmengine'), 'mmengine is not installed', "pip install 'mmengine>=0.10.4,<1'"),
    (without(INSTALLED, 'mmdet'), 'mmdet is not installed', "pip install 'mmdet>=3.2,<4'"),
    (without(INSTALLED, 'mmsegmentation'), 'mmseg is not installed',
     "pip install 'mmsegmentation>=1.2,<2' ftfy regex"),
    (without(INSTALLED, mmcv_lite='1.7.2'), 'mmcv-lite 1.7.2 is installed, >=2.0.1 is needed', f'pip install {LITE}'),
    (without(INSTALLED, mmdet='2.28.2'), 'mmdet 2.28.2 is installed, >=3.2,<4 is needed',
     "pip install 'mmdet>=3.2,<4'"),
    (without(INSTALLED, torch='2.5.1'), 'torch 2.5.1 is installed, >=2.6 is needed',
     "pip install 'torch>=2.6' 'torchvision>=0.21'"),
    (without(INSTALLED, 'mmcv-lite', mmdet='2.28.2'), 'mmcv is not installed; mmdet 2.28.2 is',
     f"pip install {LITE} 'mmdet>=3.2,<4'"),
    (without(INSTALLED, 'mmcv-lite', mmcv='2.2.0'),
     'mmdet 3.3.0 needs mmcv <2.2, mmcv 2.2.0 is installed; mmsegmentation 1.2.2 needs mmcv <2.2',
     f'pip uninstall -y mmcv && pip install {LITE}'),
    # the other kind of the same stack goes, or the two would overwrite each other
    (without(INSTALLED, 'mmcv-lite', mmcv='1.7.2'), 'mmcv 1.7.2 is installed',
     f'pip uninstall -y mmcv && pip install {LITE}'),
    (without(INSTALLED, 'mmengine', 'mmcv-lite', mmengine_lite='0.10.7'), 'mmcv is not installed',
     f"pip uninstall -y mmengine-lite && pip install 'mmengine>=0.10.4,<1' {LITE}"),
    # among forks, forks
    (without(FORKS, 'onedl-mmcv'), 'mmcv is not installed', f'pip install {FORK_MMCV}'),
    (without(FORKS, 'onedl-mmengine'), 'mmengine is not installed', f'pip install {FORK_ENGINE}'),
    (without(FORKS, 'onedl-mmdetection'), 'mmdet is not installed', f'pip install {FORK_MMDET}'),
    (without(FORKS, 'onedl-mmsegmentation'), 'mmseg is not installed', f'pip install {FORK_MMSEG}'),
    (without(FORKS, onedl_mmengine='0.10.7'), 'onedl-mmengine 0.10.7 is installed, >=0.10.8,<1 is needed',
     f'pip install {FORK_ENGINE}'),
    (without(FORKS, 'onedl-mmdetection', mmdet='3.3.0'),
     'mmdet 3.3.0 needs mmcv <2.2, onedl-mmcv 2.3.6 is installed',
     f'pip uninstall -y mmdet && pip install {FORK_MMDET}'),
    # twice the same folder
    (without(INSTALLED, mmcv='2.1.0'),
     'mmcv-lite 2.1.0 and mmcv 2.1.0 are installed at once and overwrite each other in the folder mmcv',
     f'pip uninstall -y mmcv-lite mmcv && pip install {LITE}'),
    (without(INSTALLED, mmengine_lite='0.10.7'), 'mmengine 0.10.7 and mmengine-lite 0.10.7 are installed at once',
     "pip uninstall -y mmengine mmengine-lite && pip install 'mmengine>=0.10.4,<1'"),
    (without(FORKS, mmdet='3.3.0', onedl_mmcv='2.3.6'), 'mmdet 3.3.0 and onedl-mmdetection 3.5.1 are installed at once',
     f'pip uninstall -y mmdet onedl-mmdetection && pip install {FORK_MMDET}'),
    # a fork of mmcv brings its mmengine, and the original mmdet and mmseg refuse it
    (without(INSTALLED, onedl_mmcv='2.3.6'), 'mmcv-lite 2.1.0 and onedl-mmcv 2.3.6 are installed at once',
     'pip uninstall -y mmengine mmcv-lite onedl-mmcv mmdet mmsegmentation && '
     f'pip install {FORK_ENGINE} {FORK_MMCV} {FORK_MMDET} {FORK_MMSEG}'),
))
def test_versions_that_do_not_work_are_one_error_with_the_mend(installed, packages, problem, mend):
    installed(packages)
    with pytest.raises(SetupError) as caught:
        check_versions('mmdet', 'mmseg')
    assert str(caught.value).startswith(f'xcit_dense cannot run here: {problem}')
    assert str(caught.value).endswith(f'. Mend it with: {mend}')


@pytest.mark.parametrize('packages, without_ops, with_ops', (
    (INSTALLED, 'pip uninstall -y mmcv-lite && pip install --no-deps --no-cache-dir ' + LITE,
     'pip uninstall -y mmcv-lite && pip install --no-deps --no-cache-dir --no-build-isolation '
     "'mmcv>=2.0.1,<2.2'"),
    (FORKS, f'pip uninstall -y onedl-mmcv && pip install --no-deps --no-cache-dir {FORK_MMCV}',
     f'pip uninstall -y onedl-mmcv && pip install --no-deps --no-cache-dir --no-build-isolation {FORK_MMCV}'),
))
def test_mmcv_is_installed_anew_from_the_same_stack(installed, packages, without_ops, with_ops):
    installed(packages)
    assert reinstall_mmcv(compiled=False) == without_ops
    assert reinstall_mmcv(compiled=True) == with_ops


def test_mmdet_is_not_needed_unless_asked_for(installed):
    installed({k: v for k, v in INSTALLED.items() if not k.startswith(('mmdet', 'mmseg'))})
    check_versions()


@pytest.mark.integration
@pytest.mark.parametrize('entry, framework', (
    ('import xcit_dense', 'torch'),
    ('import xcit_dense', 'mmengine'),
    ('import xcit_dense', 'mmcv'),
    ('tool', 'torch'),
    ('tool', 'mmengine'),
    ('config', 'mmcv'),
))
def test_missing_framework_is_the_one_thing_said(entry, framework):
    """Really without it: gone for the metadata and for imports, in a fresh process."""
    code = {
        'tool': 'import runpy; sys.argv = ["train.py", "x"]\n'
                f'runpy.run_path({str(ROOT / "tools/train.py")!r}, run_name="__main__")',
        'config': 'from mmengine.config import Config\n'
                  'Config.fromstring("custom_imports = dict(imports=[\'xcit_dense\'])", ".py")',
    }.get(entry, entry)
    hidden = [distribution for stack in STACKS.values() for distribution in stack[framework]]
    done = subprocess.run([sys.executable, '-c', f'''
import sys
from importlib import metadata
real = metadata.version
def version(name):
    if name in {hidden!r}: raise metadata.PackageNotFoundError(name)
    return real(name)
metadata.version = version
sys.modules[{framework!r}] = None
{code}
'''], text=True, capture_output=True, env=environment())
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    asked = shlex.quote(requirements(running_stack())[framework][0])
    assert f'{framework} is not installed' in last and f'pip install {asked}' in last, done.stderr


def running_stack():
    """The stack that these tests run with."""
    return 'onedl' if 'onedl-mmengine' in {d.metadata['Name'] for d in metadata.distributions()} else 'openmmlab'


@pytest.mark.integration
def test_compiled_ops_built_for_another_torch_are_named(tmp_path):
    """A broken mmcv._ext in front of the real package."""
    broken = tmp_path / 'broken.so'
    broken.write_bytes(b'no library')
    done = subprocess.run([sys.executable, '-c', f'''
import importlib.util, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == 'mmcv._ext':
            return importlib.util.spec_from_file_location(name, {str(broken)!r})
sys.meta_path.insert(0, Finder())
import xcit_dense
'''], text=True, capture_output=True, env=environment())
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "mmcv's compiled ops do not load" in last
    assert reinstall_mmcv(compiled=False) in last and reinstall_mmcv(compiled=True) in last


def pins_of(name):
    return dict(re.findall(r'^([\w-]+)==([\w.]+)', (ROOT / name).read_text(), re.M))


def test_pins_lie_in_the_ranges_that_the_package_accepts():
    pins = pins_of('requirements.txt')
    forks = pins_of('requirements-onedl.txt')
    assert not pins.keys() & forks.keys()
    # the Makefile puts the forks in the place of those
    assert {name for name in pins if name.startswith('mm')} == {
        'mmengine', 'mmcv-lite', 'mmdet', 'mmsegmentation', 'mmpretrain'}
    for stack, pinned in (('openmmlab', pins), ('onedl', {**pins, **forks})):
        for requirement in (Requirement(asked[0]) for asked in requirements(stack).values()):
            assert requirement.specifier.contains(pinned[requirement.name])
