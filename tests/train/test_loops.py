"""The training loops: what is due and kept; bad losses, too little memory and wrong options are told."""
import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from helpers.paths import TINY_SEG_CONFIG
from helpers.rank_dump import PoisonHook
from helpers.runs import At, make_config, train
from xcit_dense.errors import ConfigError, LossError, OutOfMemory
from xcit_dense.train import DenseCheckpointHook, loops
from xcit_dense.train.loops import DenseEpochLoop, DenseIterLoop
from xcit_dense.weights import newest_checkpoint, read_checkpoint


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


def test_too_little_memory_tells_the_batch():
    samples = [SimpleNamespace(img_path=name) for name in ('a.jpg', 'b.jpg')]
    assert loops._images(dict(data_samples=samples)) == ['a.jpg', 'b.jpg']
    for unknown in ({}, None, dict(data_samples=[object()])):
        assert loops._images(unknown) == ['unknown']
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


def test_a_loss_that_is_no_number_stops_the_run(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(LossError, match=r'iteration 3: the loss is not finite\. .*loss_ce nan.*; images: .*\.\w+, '):
        train(cfg, PoisonHook(rank=0, iteration=3, heal=True))
    state = read_checkpoint(newest_checkpoint(tmp_path))['state_dict']
    assert all(value.isfinite().all() for value in state.values())


def test_such_batches_can_be_skipped(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.bad_loss': 'skip'})
    got = train(cfg, PoisonHook(rank=0, iteration=3, heal=True))
    assert got['training']['loops'][0]['skipped'] == 1 and got['meta']['iter'] == 4
    steps = {int(state['step']) for state in got['optimizer']['state'].values()}
    assert steps == {3} and all(value.isfinite().all() for value in got['state_dict'].values())


@pytest.mark.parametrize(('iteration', 'where', 'said'), (
    (2, 'before_train_iter', 'iteration 2: out of memory .* 2 images .*with_cp=True'),
    (3, 'before_val_iter', 'validation after iteration 2: .*memory.* a smaller val_dataloader.batch_size')))
def test_out_of_memory_says_what_helps(iteration, where, said, demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)

    def exhaust(_):
        torch.empty(2**50)

    with pytest.raises(OutOfMemory, match=said):
        train(cfg, At(iteration, exhaust, where=where))


def test_wrong_options_are_named(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint.save_best': 'mIou'})
    with pytest.raises(ConfigError, match='save_best: there is no metric mIou. Metrics: aAcc, mIoU, mAcc'):
        train(cfg)
    with pytest.raises(ConfigError, match='bad_loss'):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.bad_loss': 'no'}))
    with pytest.raises(ConfigError, match='on_write_error'):
        DenseCheckpointHook(on_write_error='no')
    for template in ('/elsewhere/{}.pth', '../{}.pth'):
        with pytest.raises(ConfigError, match='filename_tmpl.*--work-dir'):
            DenseCheckpointHook(filename_tmpl=template)
    for place in (dict(out_dir=str(tmp_path)), dict(backend_args=dict(backend='local')),
                  dict(file_client_args=dict(backend='disk'))):
        with pytest.raises(ConfigError, match=f'--work-dir DIR.*{next(iter(place))}'):
            DenseCheckpointHook(**place)
    with pytest.raises(ConfigError, match='published_keys'):
        DenseCheckpointHook(published_keys=['state_dict'])
