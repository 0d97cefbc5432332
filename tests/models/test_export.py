"""Export, compilation and tracing of the backbone."""
import copy

import pytest
import torch

from helpers.models import build, build_golden, loss_of, randomise, relative_error
from xcit_dense import XCiT, set_fast

TOLERANCE = 5e-6


def test_export_with_dynamic_height_and_width(golden):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors, norm_cfg=dict(type='SyncBN')).eval()  # the default
    height, width = torch.export.Dim('height', min=64, max=2048), torch.export.Dim('width', min=64, max=2048)
    program = torch.export.export(model, (torch.randn(1, 3, 128, 160), ), dynamic_shapes={'x': {2: height, 3: width}})
    x = tensors['input'][:1]
    for out, i in zip(program.module()(x), range(1, 5), strict=True):
        assert relative_error(out, tensors[f'eval/level{i}'][:1]) < TOLERANCE


@pytest.mark.parametrize('is_fast', (True, False))
@pytest.mark.parametrize('training', (True, False))
def test_compilers_get_one_graph(is_fast, training):
    """For every size and either state of the switch; with the Gram form where it is cheaper and on."""
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    model = randomise(build(8, out_indices=(0, ), out_strides=(4, ), drop_path_rate=0.3)).train(training)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=backend)
    with set_fast(is_fast):
        for size in ((96, 112), (120, 88)):
            x = torch.randn(2, 3, *size)
            torch.manual_seed(3)
            got = compiled(x)
            torch.manual_seed(3)
            assert relative_error(got[0], model(x)[0]) < TOLERANCE
    assert len(graphs) == 1
    # the Gram form alone takes the mean over the tokens
    assert ('.mean(1)' in graphs[0].code) == is_fast


@pytest.mark.slow
def test_compile_with_dynamic_height_and_width():
    """With checkpointed blocks; the stage right of gpu_report does it without."""
    torch._dynamo.reset()
    arch = dict(embed_dims=32, depth=1, num_heads=4, patch_size=16)
    model = randomise(XCiT(arch, out_strides=(4, ), with_cp=True)).train()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, dynamic=True)
    for size in ((133, 77), (200, 222)):
        x = torch.randn(2, 3, *size)
        for run in (compiled, plain):
            loss_of(run(x)).backward()
    for (name, a), b in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        assert torch.allclose(a.grad, b[1].grad, rtol=1e-4, atol=1e-5), name
    for (name, a), b in zip(model.named_buffers(), plain.buffers(), strict=True):
        assert relative_error(a.float(), b.float()) < TOLERANCE, name


EXACT = 1e-5


def test_export_of_a_fused_model_with_dynamic_sizes():
    model = randomise(build(8)).eval()
    fused = copy.deepcopy(model).fuse()
    sizes = {2: torch.export.Dim('height', min=64, max=2048), 3: torch.export.Dim('width', min=64, max=2048)}
    program = torch.export.export(fused, (torch.randn(1, 3, 128, 160), ), dynamic_shapes={'x': sizes})
    x = torch.randn(1, 3, 100, 171)
    with torch.no_grad():
        for got, wanted in zip(program.module()(x), model(x), strict=True):
            assert relative_error(got, wanted) < EXACT
