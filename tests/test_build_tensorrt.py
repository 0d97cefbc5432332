"""The script that builds TensorRT engines, as far as it runs without TensorRT and without a GPU."""
import runpy
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import parser
from PIL import Image

from helpers.onnx_files import write_backbone, write_segmentor
from helpers.paths import ROOT
from helpers.tools import environment
from xcit_dense.runtime import Model

SCRIPT = ROOT / 'tools/build_tensorrt.py'


@pytest.fixture(scope='module')
def script():
    return runpy.run_path(str(SCRIPT))


@pytest.fixture
def files(tmp_path):
    Image.fromarray(np.zeros((400, 500, 3), np.uint8)).save(tmp_path / 'image.png')
    return write_segmentor(tmp_path / 'model.onnx'), tmp_path / 'image.png'


def test_its_help_says_that_it_has_not_run():
    done = subprocess.run([sys.executable, SCRIPT, '--help'], text=True, capture_output=True, env=environment())
    assert done.returncode == 0 and 'NOT RUN YET' in done.stdout and '--opt BxHxW' in done.stdout
    assert '**Not run yet.**' in (ROOT / 'docs/tensorrt.md').read_text()


@pytest.mark.parametrize('options, words', (
    (['--min', '1x800'], '1x800x1280'), (['--opt', '1x0x5'], "'1x0x5'"), (['--min', '8x320x320'], 'not be above'),
    (['--opt', '1x2000x300'], 'not be above'), (['--float32', 'a('], r'--float32 a\('), (['--repeats', '0'], 'above 0'),
    (['--workspace', 'nan'], 'above 0'),
    (['--engine', 'model.onnx'], 'exists already'), (['--dtype', 'int8'], 'invalid choice')))
def test_options_that_cannot_be(options, words, script, files, capsys, monkeypatch):
    monkeypatch.chdir(files[0].parent)
    with pytest.raises(SystemExit) as caught:
        script['main']([*map(str, files), *options])
    assert caught.value.code == 2
    assert words.replace('\\', '') in capsys.readouterr().err


def test_what_is_missing_is_said_in_one_sentence(script, files, tmp_path, monkeypatch):
    model, image = map(str, files)
    monkeypatch.setitem(sys.modules, 'tensorrt', None)
    assert 'pip install tensorrt' in script['main']([model, image])
    assert 'not within --min' in script['main']([model, image, '--max', '1x800x1280', '--min', '1x401x320'])
    assert 'no file' in script['main'](['nowhere.onnx', image])
    assert 'no image' in script['main']([model, 'nowhere.png'])
    assert 'backbone' in script['main']([str(write_backbone(tmp_path / 'b.onnx')), image])
    monkeypatch.setitem(sys.modules, 'modelopt.onnx.autocast', None)
    with pytest.raises(RuntimeError, match='pip install .*modelopt'):
        script['in_mixed_precision'](onnx, None, None, 'float16', [])
    assert not list(tmp_path.glob('*.plan'))


def test_a_model_whose_image_is_cast_at_first_computes_the_same(script, files, tmp_path):
    model = script['with_floats_first'](onnx, onnx.load(files[0]))
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node if 'image' in node.input] == ['Cast']
    onnx.save(model, tmp_path / 'cast.onnx')
    batch = np.random.default_rng(0).integers(0, 256, (2, 9, 7, 3), np.uint8)
    for name, wanted in Model(files[0]).run(batch).items():
        assert np.array_equal(Model(tmp_path / 'cast.onnx').run(batch)[name], wanted)


def test_products_of_two_activations_are_found(script):
    model = parser.parse_model('''<ir_version: 10, opset_import: ["": 20]>
g (float[N,4] x) => (float[N,4] y) <float[4,4] w = {0,0,0,0, 0,0,0,0, 0,0,0,0, 0,0,0,0}> {
  [turned] wt = Transpose<perm = [1, 0]>(w)
  [linear] q = MatMul(x, wt)
  [other] k = MatMul(x, w)
  [keys] kt = Transpose<perm = [1, 0]>(k)
  [gram] a = MatMul(kt, q)
  [share] s = Softmax(a)
  [values] y = MatMul(q, s)
}''')
    onnx.checker.check_model(model)
    assert script['products_of_activations'](model.graph) == ['gram', 'values']


def test_differences_are_told(script):
    dets = np.array([[[0, 0, 10, 10, .9], [5, 5, 9, 9, .5], [0, 0, 0, 0, 0]]], np.float32)
    wanted = dict(dets=dets, num=np.array([2]))
    found = dict(dets=dets[:, [1, 0, 2]] + np.float32(.25), num=np.array([2]))
    assert script['compare'](found, wanted) == [
        'objects: 2, onnxruntime 2', 'boxes: differ by up to 0.2500 pixels', 'scores: differ by up to 0.250000']
    assert script['compare'](dict(found, num=np.array([0])), wanted) == ['objects: 0, onnxruntime 2']
    labels = np.zeros((1, 4, 5), np.uint8)
    assert script['compare'](dict(labels=labels), dict(labels=labels + (np.arange(5) == 0))) == [
        'labels: 20.0000% of the pixels differ']
