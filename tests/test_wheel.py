"""The built wheel carries configs, tools and metafiles, and trains without the source tree."""
import json
import os
import subprocess
import sys
import zipfile

import pytest
import yaml
from conftest import ROOT

from xcit_dense import list_models


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    """The wheel, built from a copy: a build leaves its traces where it runs."""
    folder = tmp_path_factory.mktemp('wheel')
    source = folder / 'source'
    source.mkdir()
    command = ['git', 'ls-files', '--cached', '--others', '--exclude-standard', '-z']
    files = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split('\0')
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([sys.executable, '-m', 'pip', 'wheel', '--quiet', '--no-deps', '--no-build-isolation', '--wheel-dir',
                    folder, source], check=True)
    path, = folder.glob('xcit_dense-*.whl')
    return path


@pytest.fixture(scope='module')
def installed(wheel, tmp_path_factory):
    """A folder with what the wheel installs."""
    folder = tmp_path_factory.mktemp('installed')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed, cwd, *args):
    done = subprocess.run([sys.executable, *map(str, args)], cwd=cwd, text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**os.environ, 'PYTHONPATH': str(installed)}, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]
    return done.stdout


def test_wheel_holds_configs_tools_and_metafiles(installed):
    mim = installed / 'xcit_dense/.mim'
    assert sorted(p.stem for p in (mim / 'configs').glob('*.py')) == list_models()
    assert (mim / 'tools/train.py').is_file()
    index = yaml.safe_load((mim / 'model-index.yml').read_text())
    models = [model for name in index['Import'] for model in yaml.safe_load((mim / name).read_text())['Models']]
    assert len(models) == 42
    assert all((mim / model['Config']).is_file() for model in models)
    assert sum('Weights' in model for model in models) == 24


def test_wheel_requires_no_framework(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith('METADATA'))).decode()
    required = [line for line in metadata.splitlines() if line.startswith('Requires-Dist') and 'extra ==' not in line]
    assert required and not any(name in line for line in required for name in ('torch', 'mm'))


@pytest.mark.slow
def test_wheel_trains_the_demo_without_the_source_tree(installed, tmp_path):
    where = run(installed, tmp_path, '-c', 'import xcit_dense; print(xcit_dense.__file__)')
    assert where.startswith(str(installed))
    run(installed, tmp_path, '-m', 'xcit_dense', 'make_demo_data', 'data', '--train', 8, '--val', 2, '--size', 96)
    for name, extra in (('maskrcnn', 'train_cfg.max_epochs=1'), ('semfpn', 'train_cfg.max_iters=2')):
        config, interval = f'{name}_xcit_n12_p16_small', 'train_cfg.val_interval=1'
        output = run(installed, tmp_path, '-m', 'xcit_dense', 'train', config, '--data-root', 'data', '--cfg-options',
                     extra, interval)
        assert 'Saving checkpoint' in output
        run(installed, tmp_path, '-m', 'xcit_dense', 'predict', config, f'work_dirs/{config}', 'data/val2017', '--out',
            name)
    assert isinstance(json.loads((tmp_path / 'maskrcnn/results.json').read_text()), list)
    assert len(list((tmp_path / 'semfpn/labels').iterdir())) == 2
