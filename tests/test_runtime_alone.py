"""The runtime with onnxruntime, NumPy, Pillow alone, the service of the docs, and the package without frameworks."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import venv
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement
from PIL import Image

from helpers.onnx_files import write_detector, write_segmentor
from helpers.paths import ROOT
from helpers.tools import python
from xcit_dense.runtime import Model

pytestmark = pytest.mark.integration

DETS = np.array([[.25, .1, .75, .5, .9], [.1, 0, 1, .9, .4]], np.float32)
RULE = dict(resize=dict(rule='keep_ratio', scale=[97, 61]))
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith('PYTHON')}
PREDICT = '''
import sys, numpy as np
from {module} import Model
for task in ('detection', 'segmentation'):
    found = Model(f'{{sys.argv[1]}}/{{task}}.onnx')(f'{{sys.argv[1]}}/image.png')
    np.savez(f'{{task}}.npz', **{{key: value for key, value in vars(found).items()}})
names = [name.partition('.')[0] for name in sys.modules]
print(sorted({{name for name in names if name in ('torch', 'torchvision', 'cv2') or name.startswith('mm')}}))
'''


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp('files'), np.random.default_rng(0)
    write_detector(folder / 'detection.onnx', DETS, np.array([1, 0]), random.random((2, 28, 28), np.float32), **RULE)
    write_segmentor(folder / 'segmentation.onnx', **RULE)
    Image.fromarray(random.integers(0, 256, (70, 130, 3), np.uint8)).save(folder / 'image.png')
    return folder


@pytest.fixture(scope='module')
def lone_python(tmp_path_factory):
    """The Python of an environment that has onnxruntime, NumPy and Pillow, and what these ask for: links to what is
    installed here, so that no network is needed. The package is in it as `pip install --no-deps` installs it."""
    folder = tmp_path_factory.mktemp('lone')
    venv.create(folder / 'env', symlinks=True)
    site = next((folder / 'env').glob('lib/python*/site-packages'))
    asked, seen = ['onnxruntime', 'numpy', 'pillow'], set()
    while asked:
        name = asked.pop()
        if name in seen:
            continue
        seen.add(name)
        found = metadata.distribution(name)
        for top in {path.parts[0] for path in found.files} - {'..', '__pycache__'}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(found.locate_file(top)).resolve())
        asked += [r.name for r in map(Requirement, found.requires or ()) if not r.marker or r.marker.evaluate()]
    shutil.copytree(ROOT / 'xcit_dense', site / 'xcit_dense', ignore=shutil.ignore_patterns('__pycache__'))
    return folder / 'env/bin/python'


def run(python, code, *args, cwd):
    return subprocess.run([python, '-c', code, *map(str, args)], cwd=cwd, env=ENVIRONMENT, text=True,
                          capture_output=True)


def code_of_the_docs(is_service):
    codes = re.findall(r'```python\n(.*?)```', (ROOT / 'docs/deploying.md').read_text(), re.S)
    return next(code for code in codes if ('http.server' in code) == is_service)


@pytest.mark.parametrize('module', ('xcit_dense.runtime', 'runtime'))
def test_it_runs_without_torch_and_gives_the_same(module, lone_python, files, tmp_path):
    shutil.copy(ROOT / 'xcit_dense/runtime.py', tmp_path)
    done = run(lone_python, PREDICT.format(module=module), files, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == '[]' and not done.stderr
    for task in ('detection', 'segmentation'):
        with np.load(tmp_path / f'{task}.npz') as found:
            for key, here in vars(Model(files / f'{task}.onnx')(files / 'image.png')).items():
                assert found[key].dtype == np.asarray(here).dtype and np.array_equal(found[key], here), key


def test_any_other_name_says_what_is_missing(lone_python, tmp_path):
    for code in ('import xcit_dense; xcit_dense.XCiT', 'import xcit_dense as x; x.register()',
                 'from xcit_dense import load'):
        done = run(lone_python, code, cwd=tmp_path)
        assert done.returncode == 1
        last = done.stderr.strip().splitlines()[-1]
        assert 'SetupError' in last and 'torch is not installed' in last and 'mmengine is not' in last
        assert 'pip install' in last
    done = run(lone_python, 'import xcit_dense as x; print(x.__version__); x.nothing', cwd=tmp_path)
    assert 'AttributeError' in done.stderr and done.stdout


@pytest.mark.parametrize('task', ('detection', 'segmentation'))
def test_the_service_of_the_docs_answers_and_ends(task, lone_python, files, tmp_path):
    (tmp_path / 'service.py').write_text(code_of_the_docs(is_service=True))
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    service = subprocess.Popen([lone_python, 'service.py', files / f'{task}.onnx', str(port)], cwd=tmp_path,
                               env=ENVIRONMENT, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))

    def answer_of(data):
        with urllib.request.urlopen(f'http://127.0.0.1:{port}', data, timeout=60) as answer:
            return json.load(answer)

    try:
        while service.poll() is None:  # until it listens
            with suppress(OSError), socket.create_connection(('127.0.0.1', port), 60):
                break
            time.sleep(.1)
        answer = answer_of((files / 'image.png').read_bytes())
        found = Model(files / f'{task}.onnx')(files / 'image.png')
        if task == 'detection':
            assert [(o['name'], o['score'], o['box']) for o in answer['objects']] == list(
                zip(found.names, found.scores.tolist(), found.boxes.tolist(), strict=True))
        else:
            assert answer['shares'] == {name: (found.labels == label).mean()
                                        for label, name in enumerate(('red', 'green', 'blue'))}
        with pytest.raises(urllib.error.HTTPError) as caught:
            answer_of(b'no image')
        assert caught.value.code == 400 and 'cannot identify' in json.load(caught.value)['error']
        service.send_signal(signal.SIGINT)
        assert service.wait(30) == 0
        assert 'Traceback' not in service.stderr.read()
    finally:
        service.kill()
        service.stderr.close()


def test_the_example_of_the_docs(files, tmp_path, lone_python):
    shutil.copy(files / 'detection.onnx', tmp_path / 'model.onnx')
    Image.open(files / 'image.png').save(tmp_path / 'image.jpg')
    done = run(lone_python, code_of_the_docs(is_service=False), cwd=tmp_path)
    assert done.returncode == 0 and 'green' in done.stdout, done.stderr


def test_package_imports_without_mmdet_and_mmseg():
    out = python('import sys; sys.modules["mmdet"] = sys.modules["mmseg"] = None\n'
                 'import torch, xcit_dense\n'
                 'print([name for name in ("torchvision", "torch._dynamo", "matplotlib") if name in sys.modules])\n'
                 'print([tuple(x.shape) for x in xcit_dense.XCiT("nano_12_p16").eval()(torch.zeros(1, 3, 64, 96))])')
    # what takes a second to import is not needed for the import
    assert out.split('\n')[:2] == ['[]', '[(1, 128, 16, 24), (1, 128, 8, 12), (1, 128, 4, 6), (1, 128, 2, 3)]']


@pytest.mark.parametrize('scope', ('mmdet', 'mmseg'))
def test_backbone_is_found_from_other_scopes_by_custom_imports_alone(scope):
    out = python(f'''
from mmengine.config import Config
Config.fromstring("custom_imports = dict(imports=['xcit_dense'], allow_failed_imports=False)", '.py')
from mmengine.registry import init_default_scope
init_default_scope('{scope}')
from {scope}.registry import MODELS
import torch
model = MODELS.build(dict(type='XCiT', arch='nano_12_p16', out_indices=(5, 11), out_strides=(8, 16)))
sum(level.sum() for level in model(torch.randn(2, 3, 64, 96))).backward()
print(type(model).__module__, all(p.grad is not None for p in model.parameters()))
''')
    assert out.strip().endswith('xcit_dense.models.backbone True')
