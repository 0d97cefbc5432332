"""int8 of exported files: which layers, what stays, what the numbers become."""
import json
import logging
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from helpers.models import build, randomise, relative_error
from xcit_dense.errors import ConfigError
from xcit_dense.export.finishing import nodes_to_quantise, quantise
from xcit_dense.models.exported_form import to_exported_form

onnx = pytest.importorskip('onnx')
onnxruntime = pytest.importorskip('onnxruntime')


class Head(nn.Module):
    """A stem, linear layers on the token grid and a classifier, named as in mmseg, behind uint8 images."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.ModuleList((nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, 32, 3, 2, 1)))
        self.lpi = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.fc1 = nn.Linear(32, 64)
        self.attn = nn.Linear(64, 32)
        self.small = nn.Linear(32, 4)
        self.conv_seg = nn.Conv2d(32, 19, 1)

    def forward(self, image, size):
        x = (image.float().permute(0, 3, 1, 2) - 120) / 60
        for conv in self.patch_embed.proj:
            x = nn.functional.gelu(conv(x))
        x = self.lpi(x).permute(0, 2, 3, 1)
        y = self.attn(nn.functional.gelu(self.fc1(x)))
        gram = y.flatten(1, 2).mT @ y.flatten(1, 2) / 1000
        y = (y.flatten(1, 2) @ gram.softmax(-1)).view_as(y) + self.small(x).sum(-1, keepdim=True)
        return self.conv_seg(y.permute(0, 3, 1, 2)) + size.sum()


def export(model, args, shapes, names, file):
    program = torch.onnx.export(model.eval(), args, dynamo=True, dynamic_shapes=shapes, input_names=names,
                                verbose=False)
    proto = program.model_proto
    if 'size' in names:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(2, np.int64), 'size'))
    onnx.helper.set_model_props(proto, dict(mean=json.dumps([120, 110, 100]), std=json.dumps([60, 50, 55]), task='x'))
    onnx.save(proto, file)
    return file


@pytest.fixture(scope='module')
def head(tmp_path_factory):
    torch.manual_seed(0)
    free = torch.export.Dim.DYNAMIC
    shapes = ({0: free, 1: free, 2: free}, None)
    image = torch.zeros(2, 32, 48, 3, dtype=torch.uint8)
    return export(Head(), (image, torch.zeros(2, dtype=torch.int64)), shapes, ['image', 'size'],
                  tmp_path_factory.mktemp('head') / 'head.onnx')


def pictures(count, size=(40, 56, 3)):
    random = np.random.default_rng(0)
    return (random.integers(0, 256, size, np.uint8) for _ in range(count))


def run(file, feed):
    return onnxruntime.InferenceSession(str(file), providers=['CPUExecutionProvider']).run(None, feed)


def weights_of(model):
    """Names of the layers that a quantised file holds in int8."""
    return {name for name in ('proj.0', 'proj.1', 'lpi', 'fc1', 'attn', 'small', 'conv_seg')
            if any(name in node.metadata_props[0].value or name in node.input[1]
                   for node in model if node.metadata_props)}


def test_dense_layers_between_first_and_last_are_quantised(head):
    nodes = nodes_to_quantise(onnx.load(head))
    assert len(nodes) == 2 and weights_of(nodes) == {'proj.1', 'fc1'}
    assert len(nodes_to_quantise(onnx.load(head), kept=())) == 4  # attn and conv_seg too, small and depthwise never


def test_numbers_are_nearly_those_of_the_file(head, tmp_path, capsys, caplog):
    target = tmp_path / 'int8.onnx'
    caplog.set_level(logging.WARNING)  # that of the root logger
    names = quantise(head, target, pictures(3))
    assert not caplog.records and logging.getLogger().level == logging.WARNING
    model = onnx.load(target)
    assert {prop.key: prop.value for prop in model.metadata_props}['task'] == 'x'
    int8 = [tensor for tensor in model.graph.initializer if tensor.data_type == onnx.TensorProto.INT8
            and len(tensor.dims) > 1]
    assert len(int8) == len(names) == 2
    assert 'calibrating: 3' in capsys.readouterr().err.replace('\r', '')
    for size in ((1, 40, 56, 3), (3, 33, 47, 3)):
        image = np.random.default_rng(1).integers(0, 256, size, np.uint8)
        got, wanted = run(target, dict(image=image))[0], run(head, dict(image=image))[0]
        assert got.shape == wanted.shape
        error = relative_error(torch.from_numpy(got), torch.from_numpy(wanted))
        assert 1e-5 < error < 0.03
    assert [path.name for path in tmp_path.iterdir()] == ['int8.onnx']


@pytest.mark.parametrize('takes_uint8', (False, True))
def test_ranges_are_those_of_all_images_as_the_file_gets_them(takes_uint8, tmp_path):
    """The least value is red in the first image, the largest blue in the last."""
    image, perm = ('uint8[1,H,W,3] image', '[0, 3, 1, 2]') if takes_uint8 else ('float[1,3,H,W] image', '[0, 1, 2, 3]')
    model = onnx.parser.parse_model(f'''<ir_version: 10, opset_import: ["": 18]> x ({image}) => (float[1,16,H,W] y) {{
      cast = Cast<to = 1>(image)
      x = Transpose<perm = {perm}>(cast)
      many = Concat<axis = 1>(x, x, x, x, x, x)
      y = Conv(many, weight)
    }}''')
    model.graph.node[-1].name = 'conv'
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((16, 18, 1, 1), np.float32), 'weight'))
    onnx.helper.set_model_props(model, dict(mean='[120, 110, 100]', std='[60, 50, 55]'))
    onnx.save(model, tmp_path / 'model.onnx')
    images = [np.full((8, 24, 3), colour, np.uint8) for colour in ((10, 90, 80), (130, 100, 70), (90, 110, 250))]
    quantise(tmp_path / 'model.onnx', tmp_path / 'int8.onnx', images, kept=())
    made = onnx.load(tmp_path / 'int8.onnx').graph
    node = next(node for node in made.node if node.op_type == 'QuantizeLinear' and node.input[0] == 'many')
    scale = next(onnx.numpy_helper.to_array(value) for value in made.initializer if value.name == node.input[1])
    wanted = 250 if takes_uint8 else (250 - 100) / 55 - (10 - 120) / 60  # a range always includes 0
    assert float(scale) == pytest.approx(wanted / 255, rel=1e-5)


def test_images_are_not_held(head, tmp_path):
    """Each one is gone when the second next is asked for."""
    alive = []

    def made():
        for i in range(5):
            picture = np.full((32, 32, 3), i, np.uint8)
            alive.append(weakref.ref(picture))
            yield picture
            del picture
            assert sum(ref() is not None for ref in alive) <= 2

    quantise(head, tmp_path / 'int8.onnx', made())
    assert len(alive) == 5


def test_a_file_without_layers_to_quantise_is_said(head, tmp_path):
    with pytest.raises(ConfigError, match='no layers'):
        quantise(head, tmp_path / 'int8.onnx', pictures(1), kept=('*', ))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize('patch_size', (8, 16))
def test_backbone(patch_size, tmp_path):
    """FFN, stem but for its first layer, and pyramid; nothing of the attention."""
    model = randomise(build(patch_size)).eval()
    free = torch.export.Dim.DYNAMIC
    file = export(to_exported_form(model), (torch.randn(2, 3, 96, 128), ), ({0: free, 2: free, 3: free}, ), ['images'],
                  tmp_path / 'model.onnx')
    target = tmp_path / 'int8.onnx'
    quantise(file, target, pictures(4, (96, 128, 3)))
    nodes = nodes_to_quantise(onnx.load(file))
    assert sum(node.op_type == 'MatMul' for node in nodes) == 8 + (1 if patch_size == 8 else 3)
    x = np.random.default_rng(1).standard_normal((2, 3, 65, 97), np.float32)
    for got, wanted in zip(run(target, dict(images=x)), run(file, dict(images=x)), strict=True):
        assert 1e-5 < relative_error(torch.from_numpy(got), torch.from_numpy(wanted)) < 0.1
