"""Parts of the training loops by themselves: what is due, what is kept, what is said."""
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from xcit_dense.train import loops
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
    views = dict(inputs=[torch.empty(5, 3, 8, 8), torch.empty(5, 3, 4, 4)])
    assert '5 images (8x8, 4x4 pixels' in loops._describe_memory(RuntimeError(), views, 1)
    assert '0 images (unknown sizes' in loops._describe_memory(RuntimeError(), None, 1)
    for error, found in ((torch.OutOfMemoryError(), True), (RuntimeError("x can't allocate memory y"), True),
                         (RuntimeError('other'), False)):
        assert loops._is_out_of_memory(error) == found
