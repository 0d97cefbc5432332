"""Runtimes in the benchmark: our model, exported, compared with the eager model."""
import pytest
from mmengine.device import get_device

from helpers.models import TINY
from xcit_dense import get_arch
from xcit_dense.benchmark import cells, models, runtimes
from xcit_dense.errors import SetupError

ARCH = get_arch(dict(TINY, depth=4, patch_size=16))
pytestmark = pytest.mark.skipif(get_device() != 'cpu', reason='there is a GPU')


def measure(names):
    cell = cells.measure_cell(ARCH, (64, 80), batch=1, dtype='float32', mode='inference',
                              names=['ours', 'plain', *names], runs=2)
    return {row['name']: row for row in cell['rows']}


def test_eager_in_bfloat16():
    rows = measure(['eager_bf16'])
    row = rows['eager_bf16']
    assert 1e-4 < row['error'] < 5e-2 and row['times_ours'] == rows['ours']['seconds'] / row['seconds']
    assert 'file_bytes' not in row and 'times_ours' not in rows['plain']


def test_a_missing_package_is_named(monkeypatch):
    def open_file(files, model, shape):
        import no_such_runtime  # noqa: F401

    monkeypatch.setitem(runtimes.RUNTIMES, 'onnxruntime', open_file)
    with pytest.raises(SetupError, match='pip install.*onnxruntime'):
        models.build_models(ARCH, 'inference', ['ours', 'onnxruntime'])


@pytest.mark.parametrize('options, words', (
    (('--runtimes', 'tensorflow', '--modes', 'inference'), ('tensorflow', 'onnxruntime_int8')),
    (('--runtimes', 'onnxruntime'), ('--modes inference', )),
    (('--runtimes', '--modes', 'inference', '--dtype', 'bfloat16'), ('float32', )),
))
def test_tool_says_where_runtimes_run(call_tool, tmp_path, options, words):
    code, message = call_tool('benchmark.py', *options, '--out', tmp_path)
    assert code and all(word in message for word in words), message
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_every_runtime_gives_our_maps():
    pytest.importorskip('onnxruntime')
    pytest.importorskip('openvino')
    rows = measure(list(runtimes.RUNTIMES))
    for name in runtimes.RUNTIMES:
        row = rows[name]
        exact = name in ('onnxruntime', 'openvino', 'openvino_fixed')
        assert (0 if exact else 1e-4) < row['error'] < (1e-5 if exact else 0.1), name
        assert (row.get('file_bytes', 0) > 10_000) == (name != 'eager_bf16')
    assert rows['openvino_int8']['file_bytes'] < rows['openvino']['file_bytes']
