"""CUDA graphs of a backbone, which `helpers.graphs` replays on a CPU."""
import copy
import pickle
import random
from contextlib import nullcontext

import pytest
import torch
from models.touches import TOUCHES, make
from torch import nn

from helpers.graphs import Again, Recorder, replay_on_cpus, train_in_parallel
from helpers.models import assert_equal
from xcit_dense import XCiTClassifier, set_fast
from xcit_dense.models import graphs
from xcit_dense.models.graphs import AFTER, Graphs

SIZES = (64, 72), (80, 72)


@pytest.fixture(autouse=True)
def _on_cpus(monkeypatch):
    replay_on_cpus(monkeypatch)


def pair(said=None, **options):
    """Return two equal models in training, the first with graphs."""
    models = [make(**dict(drop_path_rate=0.3, attn_drop_rate=0.1) | options).train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[0].graphs = Graphs(models[0], (said if said is not None else []).append)
    return models


def images(seed, size=SIZES[0], count=2):
    return torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(seed))


def step(model, seed, size=SIZES[0], used=slice(None), clear=True, dtype=None):
    """Return outputs, gradients, buffers and the next random number of a step."""
    torch.manual_seed(seed)
    if clear:
        model.zero_grad()
    with torch.autocast('cpu', dtype) if dtype else nullcontext():
        outs = model(images(seed, size))
    outs = outs if isinstance(outs, tuple) else (outs, )
    # gradients with the strides of the outputs, as heads return them: sums in another order are rounded otherwise
    weights = [torch.empty_like(out).copy_(torch.linspace(-1, 1, out.numel()).view_as(out)) for out in outs]
    sum((out * weight).sum() for out, weight in zip(outs[used], weights[used], strict=True)).backward()
    return dict(outs=[out.detach() for out in outs], grads=[p.grad for p in model.parameters()],
                buffers=[*map(torch.clone, model.buffers())], random=torch.rand(3))


def assert_same(models, seed, **options):
    assert_equal(*(step(model, seed, **options) for model in models))


def until_captured(models, **options):
    for seed in range(AFTER + 2):
        assert_same(models, seed, **options)
    assert models[0].graphs.pairs


@pytest.mark.parametrize('options', (
    {}, dict(dtype=torch.bfloat16), dict(frozen_stages=1, norm_eval=True), dict(out_strides=None),
    dict(norm_cfg=dict(type='GN', num_groups=4))))
def test_steps_are_those_without_graphs_to_the_last_bit(options):
    """Of two sizes in turn, with sums of gradients, validations, and an optimizer between them."""
    dtype, said = options.get('dtype'), []
    models = pair(said, **{key: value for key, value in options.items() if key != 'dtype'})
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-4) for model in models]
    for seed in range(6 * AFTER):
        assert_same(models, seed, size=SIZES[seed % 3 == 0], clear=seed % 4 == 3, dtype=dtype)
        if seed % 4 == 2:
            for optimizer in optimizers:
                optimizer.step()
        if seed % 5 == 4:
            with torch.no_grad():
                assert_equal(*(model.eval()(images(seed)) for model in models))
            [model.train() for model in models]
    assert len(models[0].graphs.pairs) == 2 and len(said) == 2 and 'CUDA graph 2' in said[1]


def test_a_classifier_has_graphs_too():
    models = [XCiTClassifier(make().arch, num_classes=3).train() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[0].graphs = Graphs(models[0], print)
    until_captured(models)


@pytest.mark.parametrize('name', TOUCHES)
def test_what_is_touched_between_two_steps_takes_effect(name):
    models = pair()
    until_captured(models)
    for model in models:
        torch.manual_seed(9)
        TOUCHES[name](model)
    for seed in range(AFTER + 2):
        assert_same(models, 7 + seed)


def replaced_data(model):
    for p in model.parameters():
        p.data = p.data * 1.5


def cut(model):
    """Leave out channels of an FFN; its weights begin where they did, with the same strides."""
    mlp = model.blocks[0].mlp
    mlp.fc1.weight.data, mlp.fc1.bias.data = mlp.fc1.weight.data[:8], mlp.fc1.bias.data[:8]
    mlp.fc2.weight.data = mlp.fc2.weight.data[:, :8]


CHANGES = dict(
    hook=lambda model: model.blocks[0].mlp.register_forward_hook(lambda _, args, out: 2 * out),
    hook_of_the_whole=lambda model: model.register_forward_hook(lambda _, args, out: tuple(2 * x for x in out)),
    momentum=lambda model: [setattr(m, 'momentum', 0.5) for m in model.modules() if isinstance(m, nn.BatchNorm2d)],
    rate=lambda model: [setattr(block.drop_path, 'rate', 0.6) for block in model.blocks],
    frozen=lambda model: model.blocks[0].requires_grad_(False),
    thawed=lambda model: model.blocks[0].requires_grad_(), eval=lambda model: model.blocks[1].eval(),
    assigned=lambda model: model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()}, assign=True),
    loaded=lambda model: model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()}),
    cut=cut, data=replaced_data, double=lambda model: model.blocks[0].double().float(),
    patched=lambda model: setattr(model.blocks[0].mlp, 'forward', lambda x: x))


@pytest.mark.parametrize('name', CHANGES)
def test_what_is_changed_between_two_steps_takes_effect(name):
    models = pair(frozen_stages=1 if name == 'thawed' else -1)
    until_captured(models)
    for model in models:
        CHANGES[name](model)
    for seed in range(AFTER + 2):
        assert_same(models, 7 + seed)


def test_modes_of_torch_have_graphs_of_their_own_or_none():
    models = pair()
    until_captured(models)
    count, kept, before = len(models[0].graphs.pairs), dict(models[0].graphs.pairs), Again.replays
    for context in (set_fast(False), torch.autocast('cpu', torch.bfloat16), torch.autograd.detect_anomaly(False),
                    torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)):
        with context:
            assert_same(models, 3)
    set_fast(True)
    for name in ('enabled', 'deterministic', 'benchmark'):
        was = getattr(torch.backends.cudnn, name)
        setattr(torch.backends.cudnn, name, not was)
        assert_same(models, 3)
        setattr(torch.backends.cudnn, name, was)
    assert models[0].graphs.pairs == kept and count == 1 and Again.replays == before
    assert_same(models, 5)


@pytest.mark.parametrize('what, words', (
    (lambda out: [x + 0.1 for x in out] if isinstance(out, list) else out, 'output 0 differs'),
    (lambda out: out if isinstance(out, list) else out * 1.1, 'the gradient of'),
    (lambda out: (torch.rand(1), out)[1], 'random numbers differs')))
def test_graphs_that_compute_something_else_are_never_used(what, words, monkeypatch):
    """What the plain pass computes counts, with its running statistics and random numbers."""
    monkeypatch.setattr(Again, 'spoil', staticmethod(what))
    models = pair(said := [])
    for seed in range(2 * AFTER):
        assert_same(models, seed)
    assert len(said) == 1 and words in said[0] and 'please report' in said[0] and not models[0].graphs.pairs


class Counting(nn.GELU):
    def forward(self, x):
        return super().forward(x) * (1 + random.random())


OBSTACLES = dict(
    own=(lambda model: setattr(model.blocks[0].mlp, 'act', Counting()), 'blocks.0.mlp.act is of the class Counting'),
    hook=(lambda model: model.blocks[0].register_forward_hook(print), 'blocks.0 has a hook'),
    norm=(lambda model: setattr(model.patch_embed.proj[0][1], 'momentum', None), 'momentum=None'),
    half=(lambda model: model.fpn1.half(), 'several types'),
    checkpoints=(lambda model: setattr(model, 'with_cp', True), 'with_cp'))


@pytest.mark.parametrize('name', OBSTACLES)
def test_what_graphs_cannot_hold_is_told_once(name):
    model, (change, words) = make().train(), OBSTACLES[name]
    change(model)
    model.graphs, calls = Graphs(model, (said := []).append), []
    for seed in range(2 * AFTER):
        for size in SIZES:
            model.graphs(lambda x: calls.append(x) or (), images(seed, size))
    assert len(said) == 1 and words in said[0] and len(calls) == 4 * AFTER


def test_what_changes_at_each_pass_has_no_graph():
    """Such as a pruned layer, which computes its weight again."""
    model = make().train()
    model.graphs = Graphs(model, (said := []).append)
    for seed in range(3 * AFTER):
        model.graphs(lambda x, seed=seed: setattr(model.blocks[0], 'seen', seed) or (), images(seed))
    assert len(said) == 1 and 'changes at each pass' in said[0]


def test_levels_that_nothing_uses_have_no_gradients():
    models = pair()
    until_captured(models)
    for used in (slice(1), slice(1, None)):
        got, wanted = (step(model, 3, used=used) for model in models)
        assert_equal(got, wanted)
        assert any(grad is None for grad in got['grads'])


def test_only_one_pass_waits_for_its_backward():
    """Another one runs without a graph; a second backward, and weights that changed before it, are errors."""
    models = pair()
    until_captured(models)
    for model in models:
        model.zero_grad()
        torch.manual_seed(1)
        first, second = model(images(1)), model(images(2))
        sum(out.square().sum() for out in (*first, *second)).backward()
    assert_equal(*([p.grad for p in model.parameters()] for model in models))
    model = models[0]
    loss = model(images(1))[0].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match='one backward pass.*--no-graphs'):
        loss.backward()
    loss = model(images(1))[0].sum()
    with torch.no_grad():
        model.blocks[0].gamma1.mul_(2)
    with pytest.raises(RuntimeError, match='modified by an inplace operation'):
        loss.backward()
    del loss  # a pass whose backward never comes
    models[0].graphs.pairs.clear()


def test_maps_stay_when_the_next_are_computed():
    models = pair()
    with torch.no_grad():
        for seed in range(AFTER + 1):
            models[0].eval()(images(seed))
        found = [models[0](images(seed)) for seed in range(3)]
        assert_equal(found, [models[1].eval()(images(seed)) for seed in range(3)])
    assert models[0].graphs.pairs


def test_an_image_may_have_a_gradient():
    models, grads = pair(), []
    until_captured(models)
    for model in models:
        torch.manual_seed(1)
        model(x := images(0).requires_grad_())[0].sum().backward()
        grads.append(x.grad)
    assert_equal(*grads)


def test_copies_and_files_have_no_graphs():
    models = pair()
    until_captured(models)
    shallow = copy.copy(models[0])
    shallow._modules = dict(models[0]._modules, blocks=copy.deepcopy(models[0].blocks[:2]), fpn2=nn.Identity())
    shallow.out_indices, before = (0, 1), Again.replays
    shallow(images(0))
    assert Again.replays == before
    for other in (copy.deepcopy(models[0]), pickle.loads(pickle.dumps(models[0]))):
        assert other.graphs is None
        other.load_state_dict(models[1].state_dict())
        assert_same((other.train(), models[1]), 5)


def test_what_needs_too_much_memory_runs_without(monkeypatch):
    def reserve(self, needed):
        raise graphs.ObstacleError('there is no memory for it')

    monkeypatch.setattr(Recorder, 'reserve', reserve)
    models = pair(said := [])
    for seed in range(2 * AFTER):
        assert_same(models, seed)
    assert len(said) == 1 and 'no memory' in said[0]


def test_processes_add_up_the_gradients_of_graphs(two_processes):
    """Each has a graph; a norm that waits for other processes has none."""
    pictures = [images(0), images(1)]
    (said, replays, weights, why), second = two_processes.in_group(train_in_parallel, make().train(), pictures)
    assert len(said) == 1 and 'training' in said[0] and replays == 2 * AFTER + 2
    assert_equal(weights, second[2])
    assert 'shares statistics' in why
