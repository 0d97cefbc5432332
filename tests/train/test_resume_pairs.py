"""Options that meet in one run, stopped and gone on with: each alone says nothing of the pair."""
import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import At, Metrics, Poison, assert_same_run, die, make_config, terminate, train
from xcit_dense.errors import Stopped
from xcit_dense.weights import newest_checkpoint, read_checkpoint

EMA = dict(custom_hooks=[dict(type='EMAHook')])
SUMMED = {'optim_wrapper.accumulative_counts': 2}


@pytest.mark.parametrize(('config', 'workers', 'stops', 'changes'), (
    (TINY_SEG_CONFIG, 2, (1, 3), {**EMA, **SUMMED}),  # both times between two iterations whose gradients are added
    (TINY_CONFIG, 0, (3, ), {**EMA, **SUMMED}),  # and at the end of an epoch, with a validation due
    (TINY_SEG_CONFIG, 0, (1, ), {**SUMMED, 'optim_wrapper.clip_grad': dict(max_norm=0.1),
                                 'train_cfg.bad_loss': 'skip'})))
def test_averaged_and_accumulated(config, workers, stops, changes, demo_data, tmp_path):
    wanted = train(make_config(config, demo_data, tmp_path / 'whole', workers, **changes))
    cfg = make_config(config, demo_data, tmp_path / 'run', workers, **changes)
    for i, stop in enumerate(stops):
        with pytest.raises(Stopped):
            train(cfg, At(stop, terminate), resume=i > 0)
        waiting = read_checkpoint(newest_checkpoint(cfg.work_dir))['training']['gradients']
        assert waiting and all(value[0].isfinite().all() for value in waiting.values())
    assert_same_run(train(cfg, resume=True), wanted)


@pytest.mark.parametrize('stop', (2, 3))
def test_a_skipped_batch_is_none_of_those_that_are_added(stop, demo_data, tmp_path):
    """Iterations and steps of the optimizer part at the skipped one, before the stop."""
    changes = {**SUMMED, 'train_cfg.bad_loss': 'skip', 'train_cfg.max_iters': 6}
    wanted = train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path / 'whole', **changes), Poison(2))
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path / 'run', **changes)
    with pytest.raises(Stopped):
        train(cfg, Poison(2), At(stop, terminate))
    state = read_checkpoint(newest_checkpoint(cfg.work_dir))['training']
    assert state['loops'][0]['steps'] == stop - 1 and state['loops'][0]['skipped'] == 1
    assert bool(state['gradients']) == ((stop - 1) % 2 == 1)
    got = train(cfg, resume=True)
    assert got['training']['loops'][0]['steps'] == 5 and got['training']['loops'][0]['skipped'] == 1
    assert_same_run(got, wanted)


@pytest.mark.parametrize(('workers', 'stop'), ((0, None), (2, 2), (0, 3)))
def test_patience_that_ends_goes_on_counting(workers, stop, demo_data, tmp_path):
    """The best is the first; two validations later nothing was better, and that ends the run."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, workers, **{
        'train_cfg.max_iters': 6, 'train_cfg.val_interval': 1, 'custom_hooks': [
            dict(type='EarlyStoppingHook', monitor='mIoU', rule='greater', patience=2)]})
    metrics = Metrics(tmp_path, 5., 4., 3., 2., 1., 0.)
    if stop:
        with pytest.raises(Stopped):
            train(cfg, metrics, At(stop, terminate))
    train(cfg, metrics, At(5, die), resume=bool(stop))
    assert metrics.values == [2., 1., 0.]


def test_the_best_score_is_that_of_before_the_stop(demo_data, tmp_path):
    """A resumed run neither takes a worse checkpoint for the best nor forgets where the best lies."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, workers=2, **EMA, **{
        'train_cfg.max_iters': 4, 'train_cfg.val_interval': 1,
        'default_hooks.checkpoint': dict(save_best='mIoU', rule='greater')})
    with pytest.raises(Stopped):
        train(cfg, metrics := Metrics(tmp_path, 1., 3., 2., 2.), At(3, terminate))
    train(cfg, metrics, resume=True)
    assert metrics.values == []
    assert [path.name for path in tmp_path.glob('best_*.pth')] == ['best_mIoU_iter_2.pth']


def test_repeated_images_of_rare_classes(demo_data, tmp_path):
    """The wrapper that `--suggest` writes: its passes go on in their middle, with the same classes."""

    def config(folder):
        cfg = make_config(TINY_CONFIG, demo_data, tmp_path / folder)
        cfg.train_dataloader.dataset = dict(type='ClassBalancedDataset', oversample_thr=0.99,
                                            dataset=cfg.train_dataloader.dataset)
        return cfg

    wanted = train(config('whole'))
    assert wanted['meta']['iter'] > 2 * 3  # some come again
    with pytest.raises(Stopped):
        train(config('run'), At(2, terminate))
    assert_same_run(train(config('run'), resume=True), wanted)
