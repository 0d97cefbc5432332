"""The built wheel carries configs, tools and metafiles, and trains without the source tree."""
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from functools import partial

import pytest
import yaml
from packaging.requirements import Requirement

from helpers.paths import ROOT
from xcit_dense import list_models
from xcit_dense.compat.versions import extras

pytestmark = pytest.mark.integration


@pytest.fixture(scope='module')
def distributions(tmp_path_factory):
    """A folder with the source distribution, and the wheel built from it; the build runs in a copy of the checkout."""
    folder = tmp_path_factory.mktemp('wheel')
    command = ['git', 'ls-files', '--cached', '--others', '--exclude-standard', '-z']
    files = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split('\0')
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (folder / 'source' / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / 'source' / name)
    python('-m', 'build', '--no-isolation', '--outdir', folder / 'dist', folder / 'source')
    return folder / 'dist'


@pytest.fixture(scope='module')
def installed(distributions, tmp_path_factory):
    folder = tmp_path_factory.mktemp('installed')
    wheel, = distributions.glob('xcit_dense-*.whl')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def python(*args, path='', **options):
    done = subprocess.run([sys.executable, *map(str, args)], text=True, stdout=subprocess.PIPE, timeout=600,
                          stderr=subprocess.STDOUT, env={**os.environ, 'PYTHONPATH': str(path)}, **options)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_package_index_would_accept_both(distributions):
    files = sorted(distributions.iterdir())
    assert [path.name.endswith(('.whl', '.tar.gz')) for path in files] == [True, True]
    assert python('-m', 'twine', 'check', '--strict', *files).count('PASSED') == 2
    with tarfile.open(files[1]) as archive:
        folders = {name.split('/')[1] for name in archive.getnames() if name.count('/') > 1}
    assert folders == {'configs', 'docs', 'tools', 'xcit_dense', 'xcit_dense.egg-info'}


def test_wheel_holds_modules_configs_tools_and_metafiles(installed):
    mim = installed / 'xcit_dense/.mim'
    assert sorted(p.stem for p in (mim / 'configs').glob('*.py')) == list_models()
    tools = {path.name for path in (ROOT / 'tools').glob('*.*')} - {'model_table.py'}
    assert {path.name for path in (mim / 'tools').iterdir()} == tools > {'train.py', 'slurm_train.sh'}
    entry, = installed.glob('*.dist-info/entry_points.txt')
    assert 'xcit-dense = xcit_dense.cli:main' in entry.read_text()
    index = yaml.safe_load((mim / 'model-index.yml').read_text())
    models = [model for name in index['Import'] for model in yaml.safe_load((mim / name).read_text())['Models']]
    assert len(models) == 71 and sum('Weights' in model for model in models) == 53
    assert all((mim / model['Config']).is_file() for model in models)
    packed = {path.relative_to(installed) for path in (installed / 'xcit_dense').rglob('*.py')}
    assert {path for path in packed if '.mim' not in path.parts} == {
        path.relative_to(ROOT) for path in (ROOT / 'xcit_dense').rglob('*.py')}


def test_wheel_holds_names_of_imagenet_and_the_page_of_the_report(installed, tmp_path):
    code = (f'import sys; sys.path.append({str(ROOT / "tests")!r})\n'
            'from report.contents import make_content\n'
            'from xcit_dense.data.class_folders import imagenet_classes\n'
            'from xcit_dense.report import page\n'
            'page.write_page("report.html", make_content()); print(len(imagenet_classes()), page.__file__)')
    assert python('-c', code, path=installed, cwd=tmp_path).startswith(f'1000 {installed}')
    assert '<h1>' in (tmp_path / 'report.html').read_text()


def test_wheel_asks_for_frameworks_in_extras_only(installed):
    described = message_from_string(next(installed.glob('*.dist-info/METADATA')).read_text())
    asked = [Requirement(line) for line in described.get_all('Requires-Dist')]
    assert {r.name for r in asked if not r.marker} == {'numpy', 'orjson', 'packaging', 'pycocotools', 'tqdm'}
    for name, lines in extras().items():
        extra = {(r.name, r.specifier) for r in asked if r.marker and r.marker.evaluate({'extra': name})}
        assert extra == {(r.name, r.specifier) for r in map(Requirement, lines)}


@pytest.mark.slow
def test_wheel_trains_the_demo_without_the_source_tree(installed, tmp_path):
    run = partial(python, path=installed, cwd=tmp_path)
    assert run('-c', 'import xcit_dense; print(xcit_dense.__file__)').startswith(str(installed))
    run('-m', 'xcit_dense', 'make_demo_data', 'data', '--train', 8, '--val', 2, '--size', 96)
    run('-m', 'xcit_dense', 'train', 'semfpn_xcit_n12_p16_small', '--data-root', 'data', '--iterations', 2)
    run('-m', 'xcit_dense', 'predict', 'work_dirs/semfpn_xcit_n12_p16_small', 'data/val2017', '--out', 'out')
    assert len(list((tmp_path / 'out/labels').iterdir())) == 2
