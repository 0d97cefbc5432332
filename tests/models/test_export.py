"""Export and compilation of the backbone, and of a fused copy: the same numbers, and modified layers stay."""
import copy

import pytest
import torch
import torch._dynamo  # which takes a second, so not in the first test that needs it
from models.touches import Doubled, replaced
from torch._dynamo.utils import counters

from helpers.models import assert_close, build, build_golden, loss_of, randomise, relative_error
from xcit_dense import XCABlock, XCiT, XCiTClassifier, set_fast
from xcit_dense.models import trunk

TOLERANCE = 5e-6
EXACT = 1e-5
FREE = {0: torch.export.Dim.DYNAMIC, 2: torch.export.Dim.DYNAMIC, 3: torch.export.Dim.DYNAMIC}


@pytest.mark.slow
@pytest.mark.parametrize('fused', (False, True))
def test_export_with_dynamic_height_and_width(golden, fused):
    patch_size, tensors = golden
    model = build_golden(patch_size, tensors, norm_cfg=dict(type='SyncBN')).eval()  # the default
    height, width = torch.export.Dim('height', min=64, max=2048), torch.export.Dim('width', min=64, max=2048)
    program = torch.export.export(model.fuse() if fused else model, (torch.randn(1, 3, 128, 160), ),
                                  dynamic_shapes={'x': {2: height, 3: width}})
    wanted = [tensors[f'eval/level{i}'][:1] for i in range(1, 5)]
    assert_close(program.module()(tensors['input'][:1]), wanted, EXACT if fused else TOLERANCE)


@pytest.mark.parametrize('is_fast, training', (
    (True, False), (False, False), pytest.param(True, True, marks=pytest.mark.slow)))
def test_compilers_get_one_graph(is_fast, training):
    """For every size and either state of the switch; with the Gram form where it is cheaper and on."""
    torch._dynamo.reset()
    graphs = []
    model = randomise(build(8, out_indices=(0, ), out_strides=(4, ), drop_path_rate=0.3)).train(training)
    compiled = torch.compile(model, fullgraph=True, dynamic=True,
                             backend=lambda graph, inputs: graphs.append(graph) or graph)
    with set_fast(is_fast):
        for size in ((96, 112), (120, 88)):
            x, found = torch.randn(2, 3, *size), []
            for run in (compiled, model):
                torch.manual_seed(3)
                found.append(run(x))
            assert_close(*found, TOLERANCE)
    assert len(graphs) == 1
    # the Gram form alone takes the mean over the tokens
    assert ('.mean(1)' in graphs[0].code) == is_fast


def test_blocks_are_compiled_for_any_size(monkeypatch):
    """With Inductor this needs a change of it."""
    asked = []
    monkeypatch.setattr(trunk, 'keep_sizes_dynamic', lambda: asked.append('sizes'))
    monkeypatch.setattr(XCABlock, 'compile', lambda self, **options: asked.append(options))
    build().compile_blocks(backend='eager')
    build().compile_blocks()
    assert asked == [dict(dynamic=True, backend='eager')] * 4 + ['sizes'] + [dict(dynamic=True)] * 4


@pytest.mark.slow
def test_compile_with_dynamic_height_and_width():
    torch._dynamo.reset()
    arch = dict(embed_dims=32, depth=1, num_heads=4, patch_size=16)
    model = randomise(XCiT(arch, out_strides=(4, ), with_cp=True)).train()
    plain = copy.deepcopy(model)
    compiled = torch.compile(model, dynamic=True)
    for size in ((133, 77), (200, 222)):
        x = torch.randn(2, 3, *size)
        for run in (compiled, plain):
            loss_of(run(x)).backward()
    for (name, a), b in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(a.grad, b.grad, rtol=1e-4, atol=1e-5), name
    assert_close([a.float() for a in model.buffers()], [b.float() for b in plain.buffers()], TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize('kind, dtype, training, with_cp', (
    (XCiT, torch.float32, True, False), (XCiT, torch.bfloat16, True, True),
    (XCiTClassifier, torch.float16, True, False), (XCiTClassifier, torch.float32, False, False)))
@pytest.mark.parametrize('whole', (False, True))
def test_compiling_makes_one_graph_for_any_size(kind, dtype, training, with_cp, whole):
    """For all blocks, if they are compiled one by one."""
    torch._dynamo.reset()
    counters.clear()
    options = dict(out_indices=(0, 1), out_strides=None) if kind is XCiT else dict(num_classes=5)
    model = kind(dict(embed_dims=32, depth=2, num_heads=4, patch_size=16), drop_path_rate=0.1, with_cp=with_cp,
                 **options).train(training)
    backend = 'aot_eager' if with_cp else 'eager'  # the other one cannot repeat what changes a buffer
    if whole:
        model.compile(dynamic=True, backend=backend)
    else:
        model.compile_blocks(backend=backend)
    for size in ((144, 128), (160, 192), (96, 240)):
        with torch.autocast('cpu', dtype, enabled=dtype != torch.float32), torch.set_grad_enabled(training):
            y = model(torch.randn(2, 3, *size))
        if training:
            loss_of(y if kind is XCiT else (y, )).backward()
        assert counters['stats']['unique_graphs'] == 1 and not counters['graph_break']


@pytest.mark.parametrize('patch_size, blocks, fused', (
    (8, 4, True), (16, 4, True), (8, 1, False), pytest.param(16, 4, False, marks=pytest.mark.slow)))
def test_an_exported_backbone_has_the_levels_of_the_model(patch_size, blocks, fused):
    model = randomise(build(patch_size, **dict(out_indices=(0, ), out_strides=(4, )) if blocks == 1 else {})).eval()
    given = copy.deepcopy(model).fuse() if fused else model
    before = copy.deepcopy(given.state_dict())
    form = copy.deepcopy(given).fuse()
    # what an exporter gets, of any batch and size
    program = None if fused else torch.export.export(form, (torch.randn(2, 3, 96, 128), ), dynamic_shapes=(FREE, ))
    with torch.no_grad():
        for i, size in enumerate(((64, 64), (65, 97), (33, 130), (128, 160), (200, 111))):
            x = torch.randn(3 if i % 2 else 1, 3, *size)
            wanted = model(x)
            assert_close(form(x), wanted, EXACT)
            if program:
                assert_close(program.module(check_guards=False)(x), wanted, EXACT)
    assert {n: v.tolist() for n, v in before.items()} == {n: v.tolist() for n, v in given.state_dict().items()}
    if not fused:  # what runtimes are fast at
        calls = [str(node.target) for node in program.graph.nodes]
        assert sum('batch_norm' in call for call in calls) == blocks  # of LPI: what follows it pads with zeros
        assert sum('layer_norm' in call for call in calls) == 3 * blocks


@pytest.mark.parametrize('options', (
    dict(out_strides=None), dict(out_indices=(1, 3), out_strides=(4, 32)), dict(norm_cfg=dict(type='GN', num_groups=4)),
    dict(norm_cfg=dict(type='SyncBN')), dict(frozen_stages=2, drop_path_rate=0.5)))
def test_a_model_with_any_options_is_exported_in_evaluation(options):
    model, x = randomise(build(16, **options)).train(), torch.randn(2, 3, 65, 97)
    form = copy.deepcopy(model).fuse()
    assert model.training and not form.training
    with torch.no_grad():
        assert_close(form(x), model.eval()(x), EXACT)


@pytest.mark.parametrize('name, touch', (
    ('blocks.1.local_mp', Doubled), ('fpn1.0', Doubled), ('fpn2', Doubled), ('blocks.0.local_mp', 'hook'),
    ('fpn1.3', 'hook'), ('blocks.2.drop_path', 'hook'), ('blocks.1', Doubled), ('blocks.0', 'forward')))
def test_what_somebody_changed_stays_in_an_export(name, touch):
    plain = randomise(build(16)).eval()
    model, x = copy.deepcopy(plain), torch.randn(1, 3, 70, 90)
    if touch == 'hook':
        model.get_submodule(name).register_forward_hook(lambda module, args, y: 3 * y)
    elif touch == 'forward':
        block = model.get_submodule(name)
        block.forward = lambda *args, run=block.forward: 3 * run(*args)
    else:
        replaced(model, name, touch)
    with torch.no_grad():
        wanted = model(x)
        assert max(relative_error(a, b) for a, b in zip(wanted, plain(x), strict=True)) > 1e-3
        assert_close(copy.deepcopy(model).fuse()(x), wanted, EXACT)
