"""Data sets and loops that are not the frameworks' own: batched reading, changed data, mmengine's loop."""
import pytest
import torch
from mmengine.registry import DATASETS
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, Subset

from helpers.paths import TINY_SEG_CONFIG
from helpers.runs import CASES, NO_VALIDATION, make_config, stop_after, train
from xcit_dense.errors import ConfigError, DataError
from xcit_dense.train.loaders import ResumableLoader


class Drawn(Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        if index == 6:
            raise ValueError('broken')
        return index, float(torch.rand(()))


class Batched(Drawn):
    """Can be read by several at a time."""

    def __getitems__(self, indices):
        return [Drawn.__getitem__(self, index) for index in indices]


def drawn_by(dataset, size=2, count=6):
    batches = BatchSampler(SequentialSampler(range(count)), size, False)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=list)
    return [sample for batch in ResumableLoader(loader, 3) for sample in batch]


@pytest.mark.parametrize('several', (Batched(), Subset(Drawn(), range(7)), Subset(Batched(), range(7))))
def test_samples_that_are_read_by_several_are_the_same(several):
    """Each with random numbers of its own, for any size of batches; an error names the sample."""
    wanted = drawn_by(Drawn())
    assert len({number for _, number in wanted}) == 6
    assert drawn_by(several) == drawn_by(several, size=3) == wanted
    with pytest.raises(DataError, match='sample 6.*broken'):
        drawn_by(several, count=7)


@DATASETS.register_module()
class Stream(IterableDataset):
    def __iter__(self):
        return iter(())


def test_a_stream_is_refused(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **NO_VALIDATION)
    cfg.train_dataloader.dataset = dict(type='Stream')
    with pytest.raises(ConfigError, match='a stream such as Stream'):
        train(cfg)


def test_a_loop_of_another_kind_trains_saves_and_goes_on(demo_data, tmp_path, capfd):
    """Mmengine's, which has no state."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    cfg.train_cfg.update(type='IterBasedTrainLoop', max_iters=2)
    assert train(cfg)['meta']['iter'] == 2
    assert '2 iterations, 0.667 times the data' in ''.join(capfd.readouterr())
    cfg.train_cfg.max_iters = 3
    cfg.default_hooks.checkpoint.interval = 1
    assert train(cfg, resume=True)['meta']['iter'] == 3


@pytest.mark.parametrize('name, stop, count', (('epochs', 2, 2), ('iterations', 3, 4)))
def test_another_number_of_images_is_said_and_trained_on(name, stop, count, demo_data, tmp_path, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        **CASES[name][2], **NO_VALIDATION, 'optim_wrapper.accumulative_counts': 1})
    stop_after(stop, cfg)
    cfg.train_dataloader.dataset.indices = count
    got = train(cfg, resume=True)
    told = ''.join(capfd.readouterr())
    assert f'on 6 images, now there are {count}' in told and 'nothing is left' not in told
    assert got['training']['samples'] == count
    assert (got['meta']['epoch'] if name == 'epochs' else got['meta']['iter']) in (2, 4)
    train(cfg, resume=True)
    assert 'nothing is left to train' in ''.join(capfd.readouterr())
