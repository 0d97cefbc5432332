"""Parts of the training loops and loaders by themselves: what is due, what is kept, what is said."""
import multiprocessing
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from xcit_dense.errors import DataError
from xcit_dense.train import loaders, loops
from xcit_dense.train.loaders import NamedErrors, ResumableLoader, explain
from xcit_dense.train.loops import DenseEpochLoop, DenseIterLoop


@pytest.mark.parametrize('loop, done, end', ((DenseEpochLoop, 'epochs', 'max_epochs'),
                                             (DenseIterLoop, 'iterations', 'max_iters')))
@pytest.mark.parametrize('begin, interval, last, wanted', (
    (1, 1, 3, [1, 2, 3]), (1, 2, 6, [2, 4, 6]), (1, 4, 6, [4, 6]), (3, 1, 5, [3, 4, 5]), (4, 4, 9, [4, 8, 9]),
    (5, 4, 9, [8, 9]), (1, 10, 3, [3]), (5, 1, 3, [])))
def test_validation_is_due(loop, done, end, begin, interval, last, wanted):
    """From its first unit on, at every interval counted from the start, and at the end."""
    due = [i for i in range(1, last + 1) if loop._due(SimpleNamespace(
        **{done: i, end: last}, val_begin=begin, val_interval=interval))]
    assert due == wanted


class Model:

    def parse_losses(self, losses):
        return sum(losses.values()), dict(losses, extra=torch.tensor(1.))


@pytest.mark.parametrize('error', (None, ValueError, KeyboardInterrupt))
def test_what_a_run_sets_up_goes_with_it(error):
    """The handlers of signals, and the look at the loss; before it losses that are no number pass."""
    model, seen = Model(), []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]

    def run():
        seen.extend(signal.getsignal(number) for number in numbers)
        loss, terms = model.parse_losses(dict(a=torch.tensor(2.), b=torch.tensor(3.)))
        assert loss == 5 and set(terms) == {'a', 'b', 'extra'}
        for value in (float('nan'), float('inf'), -float('inf')):
            with pytest.raises(loops._BadLoss) as bad:
                model.parse_losses(dict(a=torch.tensor(value)))
            assert bad.value.terms == pytest.approx(dict(a=value, extra=1.), nan_ok=True)
        if error:
            raise error
        return 'done'

    loop = SimpleNamespace(runner=SimpleNamespace(model=model), _steps=None, _run=run, update_val_interval=lambda: None,
                           _note_signal=lambda *_: None)
    with pytest.raises(error) if error else nullcontext():
        assert DenseIterLoop.run(loop) == 'done'
    assert seen == [loop._note_signal] * 2
    assert [signal.getsignal(number) for number in numbers] == before and not vars(model)


class Numbers(Dataset):

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return index

    def get_data_info(self, index):
        return dict(img_path=f'{index}.jpg')


def test_a_loader_keeps_what_the_config_asks_for():
    context = multiprocessing.get_context('fork')
    options = dict(num_workers=2, collate_fn=tuple, pin_memory=True, timeout=7., worker_init_fn=print,
                   prefetch_factor=5, persistent_workers=True, multiprocessing_context=context)
    loader = ResumableLoader(DataLoader(Numbers(), batch_size=2, **options), 3)
    assert {name: getattr(loader, name) for name in options} == options
    assert len(loader) == 4


def test_a_loader_draws_nothing_from_the_numbers_of_the_training():
    before = torch.get_rng_state()
    assert len(list(ResumableLoader(DataLoader(Numbers(), batch_size=2), 3))) == 4
    assert torch.equal(torch.get_rng_state(), before)


def test_positions_count_batches_and_passes():
    loader = ResumableLoader(DataLoader(Numbers(), batch_size=2, collate_fn=list), 3)
    states = [loader.state_dict()]
    for _ in range(2):
        for batch in loader:
            states.append(loader.state_dict())
            assert batch == [2 * loader.batches - 2, *([2 * loader.batches - 1] if loader.batches < 4 else [])]
    wanted = [(0, 0), *((0, i) for i in (1, 2, 3, 4)), *((1, i) for i in (1, 2, 3, 4))]
    assert [(state['passes'], state['batches']) for state in states] == wanted
    assert loader.state_dict() == dict(passes=2, batches=0, images=2)
    loader.load_state_dict(dict(passes=5, batches=3, images=2))
    assert list(loader) == [[6]] and (loader.passes, loader.batches) == (6, 0)


@pytest.mark.parametrize('before, now, batches', (
    (2, 2, 5), (2, 1, 10), (2, 4, 2), (2, 3, 3), (None, 3, 5), (2, None, 5)))
def test_another_size_of_batches_leaves_out_no_image(before, now, batches):
    """Rounded down: an image may come twice."""
    sampler = BatchSampler(SequentialSampler(range(30)), now or 2, False)
    if now is None:
        del sampler.batch_size
        sampler = SimpleNamespace(sampler=sampler.sampler)  # of the user's own, which tells no size
    loader = ResumableLoader(DataLoader(Numbers(), batch_sampler=sampler), 3)
    loader.load_state_dict(dict(passes=1, batches=5, images=before))
    assert (loader.passes, loader.batches) == (1, batches)


def test_places_are_those_of_one_process_with_the_joined_batch(monkeypatch):
    seen = []
    for rank, world_size, size in ((0, 2, 2), (1, 2, 2), (0, 1, 4)):
        monkeypatch.setattr(loaders, 'get_dist_info', lambda pair=(rank, world_size): pair)
        places = loaders._Places(BatchSampler(SequentialSampler(range(12 // world_size)), size, False))
        places.start(9, 1)
        batches = list(places)
        assert {number for batch in batches for _, number, _ in batch} == {9}
        assert [index for index, *_ in batches[0]] == list(range(size, 2 * size))  # the first was given out
        seen.append([place for batch in batches for *_, place in batch])
    assert sorted(seen[0] + seen[1]) == seen[2] == list(range(4, 12))


def test_workers_end_with_their_process_and_start_as_the_user_asks(monkeypatch):
    started, threads = [], []
    monkeypatch.setattr(loaders.ctypes, 'CDLL', lambda _: SimpleNamespace(prctl=lambda *a: started.append(a)))
    monkeypatch.setattr(loaders.signal, 'pthread_sigmask', lambda *a: started.append(a))
    monkeypatch.setattr(loaders.threading, 'Thread', lambda **options: threads.append(options) or SimpleNamespace(
        start=lambda: started.append('thread')))
    signals = loaders.signal
    loaders._start_worker(lambda number: started.append(number), 123, 4)
    assert started == [(1, signals.SIGKILL), (signals.SIG_BLOCK, {signals.SIGTERM}), 'thread', 4]
    assert threads == [dict(target=loaders._wait_for_end, args=(123, ), daemon=True)]
    loaders._start_worker(None, 123, 4)


def test_a_worker_ends_at_the_word_of_its_own_process_alone(monkeypatch):
    senders, ended = [7, 123, 8], []
    monkeypatch.setattr(loaders.signal, 'sigwaitinfo', lambda _: SimpleNamespace(si_pid=senders.pop(0)))
    monkeypatch.setattr(loaders.os, '_exit', ended.append)
    loaders._wait_for_end(123)
    assert senders == [8] and ended == [0]


def test_errors_of_workers_are_told_and_others_left():
    loader = DataLoader(NamedErrors(Numbers(), num_workers=3))
    explain(RuntimeError('something else'), 'val_dataloader', loader)
    loader.dataset._open[1], loader.dataset._open[2] = 0, 5
    with pytest.raises(DataError) as error:
        explain(RuntimeError('DataLoader worker (pid 1) is killed'), 'val_dataloader', loader)
    for words in ('val_dataloader', '0.jpg, 5.jpg', 'pid 1', 'val_dataloader.num_workers=0'):
        assert words in str(error.value)
    with pytest.raises(DataError, match='^no such image$'):
        explain(RuntimeError('Caught DataError in DataLoader worker process 0.\nTrace\nx.DataError: no such image\n'),
                'val_dataloader', loader)


@pytest.mark.parametrize('batch, wanted', (
    ({}, ['unknown']), (None, ['unknown']), (dict(data_samples=[object()]), ['unknown']),
    (dict(data_samples=[SimpleNamespace(img_path='a.jpg'), SimpleNamespace(img_path='b.jpg')]), ['a.jpg', 'b.jpg'])))
def test_images_of_a_batch(batch, wanted):
    assert loops._images(batch) == wanted


def test_too_little_memory_tells_the_batch():
    samples = [SimpleNamespace(img_path=name) for name in ('a.jpg', 'b.jpg')]
    batch = dict(inputs=[torch.empty(3, 4, 5), torch.empty(3, 60, 70)], data_samples=samples)
    text = loops._describe_memory(RuntimeError('no room\nmore'), batch, 12)
    for words in ('iteration 12:', '2 images', '4x5, 60x70 pixels', 'a.jpg, b.jpg', ': no room. ', 'with_cp=True'):
        assert words in text
    assert '0 images (unknown sizes' in loops._describe_memory(RuntimeError(), None, 1)
    for error, found in ((torch.OutOfMemoryError(), True), (RuntimeError("x can't allocate memory y"), True),
                         (RuntimeError('other'), False)):
        assert loops._is_out_of_memory(error) == found
