"""Bad losses, too little memory, wrong options: the run says so."""
import pytest
import torch

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import At, Poison, make_config, train
from xcit_dense.errors import ConfigError, LossError, OutOfMemory
from xcit_dense.train import DenseCheckpointHook
from xcit_dense.weights import newest_checkpoint, read_checkpoint


def test_a_loss_that_is_no_number_stops_the_run(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    with pytest.raises(LossError, match=r'iteration 3: the loss is not finite\. .*loss_ce nan.*; images: .*\.\w+, '):
        train(cfg, Poison(3))
    state = read_checkpoint(newest_checkpoint(tmp_path))['state_dict']
    assert all(value.isfinite().all() for value in state.values())


def test_such_batches_can_be_skipped(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.bad_loss': 'skip'})
    got = train(cfg, Poison(3))
    assert got['training']['loops'][0]['skipped'] == 1 and got['meta']['iter'] == 4
    steps = {int(state['step']) for state in got['optimizer']['state'].values()}
    assert steps == {3}
    assert all(value.isfinite().all() for value in got['state_dict'].values())


@pytest.mark.parametrize(('iteration', 'where', 'said'), (
    (2, 'before_train_iter', 'iteration 2: out of memory .* 2 images .*with_cp=True'),
    (3, 'before_val_iter', 'validation after iteration 2: .*memory.* a smaller val_dataloader.batch_size')))
def test_out_of_memory_says_what_helps(iteration, where, said, demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)

    def exhaust(_):
        torch.empty(2**50)

    with pytest.raises(OutOfMemory, match=said):
        train(cfg, At(iteration, exhaust, where=where))


def test_a_metric_that_is_not_there_is_named(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'default_hooks.checkpoint.save_best': 'mIou'})
    with pytest.raises(ConfigError, match='save_best: there is no metric mIou. Metrics: aAcc, mIoU, mAcc'):
        train(cfg)


def test_wrong_options_are_named(demo_data, tmp_path):
    with pytest.raises(ConfigError, match='bad_loss'):
        train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{'train_cfg.bad_loss': 'no'}))
    with pytest.raises(ConfigError, match='on_write_error'):
        DenseCheckpointHook(on_write_error='no')
    for place in (dict(out_dir=str(tmp_path)), dict(backend_args=dict(backend='local')),
                  dict(file_client_args=dict(backend='disk'))):
        with pytest.raises(ConfigError, match=f'--work-dir DIR.*{next(iter(place))}'):
            DenseCheckpointHook(**place)
    with pytest.raises(ConfigError, match='published_keys'):
        DenseCheckpointHook(published_keys=['state_dict'])
