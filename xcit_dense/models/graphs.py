"""CUDA graphs of a backbone: with few images, the host takes longer to launch 1,600 kernels than the GPU to run them.

A kind of batch (size, types, modes) that came `AFTER` times gets a graph of the forward pass, and in training one of
the backward pass. They read and write the memory of parameters and buffers, and their own for all else. Before they
are used, what they compute is compared with the plain pass. At each step, what they hold fixed and Python may change
is compared with what it was.
"""
import weakref
from threading import get_ident

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .._utils.text import first_line
from . import fast
from .graph_conditions import State, can_be_replayed, kind_of, obstacle_of

#: Batches of a kind that run without graphs before.
AFTER = 3
#: How far graphs may be from the plain pass, relative to the length of a tensor, by the type of its products.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class ObstacleError(Exception):
    """There are no graphs, for the reason that the message names."""


class Graphs:
    """Runs a pass of a backbone as graphs where it can, and as it is where it cannot.

    Copies and pickles are None, so those of a model have no graphs. ``say`` gets each line on what was captured, or why
    it was not.
    """

    def __init__(self, model, say=print):
        self.model, self.say, self.pairs, self._thread = model, say, {}, get_ident()
        self._states, self._seen, self._said, self._changes, self._recorder = {}, {}, set(), 0, None
        self._waits = lambda: None  # for a replayed pass whose backward may follow

    def __reduce__(self):
        return type(None), ()

    def __call__(self, function, x: Tensor):
        """Return ``function(x)``, a pass of the model: a tensor, or a tuple of them."""
        if (not can_be_replayed(x) or getattr(function, '__self__', self.model) is not self.model  # of a copy.copy
                or self._waits() is not None or get_ident() != self._thread):  # which keep what a replay writes to
            return function(x)
        kind, state = kind_of(self.model, x), self._states.get(self.model.training)
        is_current = state is not None and state.is_current()
        self._changes = 0 if is_current else self._changes + 1
        if not is_current:  # what came in this mode is out of date
            state = self._states[self.model.training] = State(self.model)
            self.pairs = {kind: pair for kind, pair in self.pairs.items() if pair.state in self._states.values()}
            self._seen = {other: count for other, count in self._seen.items() if other[0] != kind[0]}
        if self._changes > AFTER:
            self._refuse(x, 'something of it changes at each pass')
        if kind not in self.pairs:
            self._seen[kind] = self._seen.get(kind, 0) + 1
            pair = self._captured(function, x, state) if self._seen[kind] == AFTER + 1 else None
            if pair is None:
                return function(x)
            self.pairs[kind] = pair
        pair = self.pairs[kind]
        outs = _Replay.apply(self, pair, x, *pair.parameters) if pair.parameters else pair.run(x)
        return outs[0] if pair.is_single else outs

    def _captured(self, function, x, state):
        """Return a `Pair`, or None; a line says for which batches there is one, or why there is none."""
        try:
            if why := obstacle_of(self.model):
                raise ObstacleError(why)
            if not self.pairs:  # the memory of graphs that are gone is gone too
                self._recorder = Recorder(x.device)
            pair = Pair(self.model, function, x, state, self._recorder)
        except (ObstacleError, RuntimeError) as error:  # of CUDA, which has OutOfMemoryError among them
            self._refuse(x, 'no memory is left' if isinstance(error, torch.OutOfMemoryError) else first_line(error))
            return None
        use = 'training' if pair.parameters else 'inference'
        memory = f'the process now reserves {torch.cuda.memory_reserved() / 2**30:.1f} GiB'
        self.say(f'CUDA graph {len(self.pairs) + 1} of the backbone, for {use} with batches {tuple(x.shape)}: {memory}')
        return pair

    def _refuse(self, x, why):
        if why not in self._said:
            self.say(f'no CUDA graph of the backbone, at first for batches {tuple(x.shape)}: {why}')
        self._said.add(why)


class Pair:
    """The graphs of a kind of batch. All pairs of a recorder share memory, so only one may wait for its backward.

    `ObstacleError` if what they compute is not what the plain pass does, or there is no memory for them.
    """

    def __init__(self, model, function, x, state, recorder):
        self.state, self.x, named = state, x.detach().clone(), dict(model.named_parameters())
        # other leaves in the same memory: a capture reaches neither the parameters' gradients nor their hooks
        given = {name: p.detach().requires_grad_(torch.is_grad_enabled() and p.requires_grad)
                 for name, p in named.items()}
        names = [name for name, p in given.items() if p.requires_grad]
        self.parameters, leaves = [named[name] for name in names], [given[name] for name in names]
        call, given = nn.Module(), {f'model.{name}': p for name, p in given.items()}
        call.model, call.forward = model, function  # by itself, as hooks of the model are no part of the pass

        def forward():
            device = x.device.type
            with torch.autocast(device, fast.compute_dtype(x), torch.is_autocast_enabled(device), cache_enabled=False):
                out = functional_call(call, given, (self.x, ))
            self.is_single = isinstance(out, Tensor)
            return [out] if self.is_single else [*out]

        def backward(outs):
            ends, seeds = [[each[i] for i, reach in enumerate(self.reach) if reach] for each in (outs, self.seeds)]
            with torch.autocast(x.device.type, enabled=False):  # which was left when the plain backward runs
                grads = torch.autograd.grad(ends, leaves, seeds, allow_unused=True) if ends else ()
            return [grad for grad in grads if grad is not None]

        def both():
            before, outs = torch.cuda.memory_allocated(), forward()
            recorder.reserve(torch.cuda.memory_allocated() - before)
            self.seeds = [out.detach() / out.detach().abs().amax() / 64 for out in outs]  # in the range of float16
            self.reach = [_leaves_below(out, leaves) for out in outs]
            return [out.detach() for out in outs], backward(outs)

        buffers, numbers = dict(model.named_buffers()), recorder.generator.get_state()
        start = [buffer.clone() for buffer in buffers.values()]

        def undone(run):
            """Return what a run returns, and the buffers and random numbers after it, which then are as before it."""
            try:
                values = *run(), [buffer.clone() for buffer in buffers.values()]
                return [each for each in values if each], recorder.generator.get_state()
            finally:
                with torch.no_grad():
                    for buffer, value in zip(buffers.values(), start, strict=True):
                        buffer.copy_(value)
                recorder.generator.set_state(numbers)

        wanted, after = undone(lambda: recorder.warm(both))
        used = sorted(set().union(*self.reach))
        self._leaves = {i: leaves[i] for i in used}
        self._forward = recorder.record(forward)
        self._backward = recorder.record(lambda: torch.cat([
            grad.flatten() for grad in backward(self._forward.out)])) if used else None
        got, others = undone(lambda: (self.run(x), [
            grad for grad in self.gradients(self.seeds) if grad is not None] if used else []))
        names = [f'output {i}' for i in range(len(self.seeds))] + [f'the gradient of {names[i]}' for i in used]
        differs = _first_difference(wanted, got, [*names, *buffers], TOLERANCES[fast.compute_dtype(x)])
        if differs := differs or 'the number of random numbers' * (not torch.equal(after, others)):
            raise ObstacleError(f'{differs} differs from the plain pass; please report this, if your losses are finite')

    def run(self, x):
        """Return the outputs for a batch of this kind."""
        self.x.copy_(x)
        self._forward.replay()
        return tuple(out.detach().clone() for out in self._forward.out)

    def gradients(self, seeds):
        """Return the gradients of `parameters`, from those of the last outputs; None where none arrives."""
        for mine, seed in zip(self.seeds, seeds, strict=True):
            mine.zero_() if seed is None else mine.copy_(seed)
        self._backward.replay()
        found = torch._C._nn.unflatten_dense_tensors(self._backward.out.clone(), [*self._leaves.values()])
        reached = set().union(*(reach for reach, seed in zip(self.reach, seeds, strict=True) if seed is not None))
        grads = {i: grad for i, grad in zip(self._leaves, found, strict=True) if i in reached}
        return [grads.get(i) for i in range(len(self.parameters))]


class _Replay(torch.autograd.Function):
    """A pass of a `Pair`; nothing that it returns is memory of the graphs."""

    @staticmethod
    def forward(ctx, graphs, pair, x, *parameters):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*(parameters[i] for i in pair._leaves))  # to change one before the backward is an error
        ctx.pair, ctx.waits = pair, set()  # which exists as long as the backward may come
        graphs._waits = weakref.ref(ctx.waits)
        outs = pair.run(x)
        ctx.mark_non_differentiable(*(out for out, reach in zip(outs, pair.reach, strict=True) if not reach))
        return outs

    @fast.first_derivative_only
    def backward(ctx, *grads):
        if ctx.waits is None:
            raise RuntimeError('a CUDA graph of the backbone has one backward pass for each forward pass. For '
                               'retain_graph=True, turn graphs off: train --no-graphs, or no CUDAGraphHook')
        ctx.waits, _ = None, ctx.saved_tensors
        return None, None, None, *ctx.pair.gradients(grads)


class Recorder:
    """Captures what functions launch on a GPU; its graphs share memory and a stream."""

    def __init__(self, device):
        self.generator = torch.cuda.default_generators[torch.cuda.current_device()]
        self._stream, self._pool, self._held = torch.cuda.Stream(device), torch.cuda.graph_pool_handle(), 0

    def warm(self, function):
        """Run a function, so that cuBLAS, cuDNN and Triton choose their kernels."""
        now = torch.cuda.current_stream()
        self._stream.wait_stream(now)
        try:
            with torch.cuda.stream(self._stream):
                return function()
        finally:
            now.wait_stream(self._stream)

    def record(self, function):
        """Return a graph of what a function launches, with ``out``, what it returned, and ``replay``."""
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, 'thread_local'):  # others may pin memory meanwhile
                before = torch.cuda.memory_reserved()
                graph.out = function()
                self._held += torch.cuda.memory_reserved() - before
        finally:
            torch.cuda.set_stream(now)  # where a capture failed, torch does not
        return graph

    def reserve(self, needed):
        """Raise `torch.OutOfMemoryError` if a graph of so many bytes would take memory that other batches needed."""
        free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.max_memory_allocated()
        if free - self._held < 1.5 * needed:  # plain passes do not get what graphs hold
            raise torch.OutOfMemoryError


def _leaves_below(out, leaves):
    """Return the places of the leaves that a tensor depends on."""
    nodes = dict.fromkeys([out.grad_fn])
    for node in (todo := [*nodes]):  # and those that come
        todo += [inner for inner, _ in (node.next_functions if node else ()) if inner not in nodes]
        nodes |= dict.fromkeys(todo)
    below = {id(getattr(node, 'variable', None)) for node in nodes}
    return {i for i, leaf in enumerate(leaves) if id(leaf) in below}


def _first_difference(wanted, got, names, tolerance):
    """Return the name of the first tensor of several groups that differs by more than rounding, or None."""
    wrong = []
    for a, b in zip(wanted, got, strict=True):
        sizes, offs = (torch.stack([torch.linalg.vector_norm(t.double()) for t in tensors]) for tensors in (
            a, [u.double() - t.double() for t, u in zip(a, b, strict=True)]))
        # some gradients are 0 but for rounding, so the largest of a group counts too; NaN is wrong
        wrong.append(~(offs <= tolerance * (sizes + 0.01 * sizes.max())))
    return next((name for name, is_wrong in zip(names, torch.cat(wrong).tolist(), strict=True) if is_wrong), None)
