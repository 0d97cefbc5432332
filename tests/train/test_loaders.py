"""The loaders: what a pass over any data has, where a run goes on; unreadable images and dead workers are named."""
import ctypes
import multiprocessing
import os
import re
import signal
import subprocess
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, Subset

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import CASES, NO_VALIDATION, At, make_config, stop_after, train
from xcit_dense._utils.processes import end_workers
from xcit_dense.errors import ConfigError, DataError
from xcit_dense.train import build_runner, loaders
from xcit_dense.train.loaders import ResumableLoader, bind_workers
from xcit_dense.train.runner import DenseRunner


def test_passes_differ_in_order_and_augmentation(demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path)
    loader = build_runner(cfg).build_train_loop(cfg.train_cfg).dataloader
    passes = [[(s.img_path, s.flip) for batch in loader for s in batch['data_samples']] for _ in range(4)]
    assert len({tuple(name for name, _ in p) for p in passes}) == 4
    assert len({tuple(flip for _, flip in p) for p in passes}) == 4
    assert len({frozenset(name for name, _ in p) for p in passes}) == 1
    assert len([*loader.dataset]) == len(loader.dataset)  # loops over it end
    loader.dataset.pipeline = lambda data: 'switched'  # hooks reach the data set through the loader
    assert loader.dataset.inner.pipeline(None) == loader.dataset.pipeline(None) == 'switched'


@pytest.mark.parametrize('folder, workers', (('training', 0), ('validation', 2)))
def test_an_unreadable_image_is_named(folder, workers, root, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, root, tmp_path / 'run', workers, **{'val_dataloader.num_workers': workers})
    victim = sorted((root / 'images' / folder).iterdir())[2]
    whole = victim.read_bytes()
    victim.write_bytes(b'no image')
    with pytest.raises(DataError, match=rf'^cannot read sample 2, \S+/{victim.name}: ') as error:
        train(cfg)
    if folder == 'training':  # what was trained is not lost
        assert re.search(r'Fix the data. Saved .*iter_\d.pth; continue with --resume', str(error.value))
        victim.write_bytes(whole)
        assert train(cfg, resume=True)['meta']['iter'] == 4
    else:
        cfg.test_dataloader.num_workers = workers
        with pytest.raises(DataError, match=rf'^cannot read sample 2, \S+/{victim.name}: '):
            build_runner(cfg).test()


@pytest.mark.parametrize(('loader', 'delay'), (('train', 0.5), ('val', 0)))
def test_a_dead_worker_is_told_of(loader, delay, demo_data, tmp_path, monkeypatch):
    """Independent of what the main process does meanwhile."""
    read = BaseDataset.__getitem__

    def kill(self, index):
        if f'images/{loader}' in self.data_prefix['img_path'] and index == (5 if loader == 'train' else 1):
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGKILL)
        return read(self, index)

    monkeypatch.setattr(BaseDataset, '__getitem__', kill)
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, workers=2, **{'val_dataloader.num_workers': 2})
    with pytest.raises(DataError, match=f'a worker of the {loader}_dataloader died .*num_workers=0'):
        train(cfg, At(1, lambda _: time.sleep(1)))


class Numbers(Dataset):
    reads = ()

    def __len__(self):
        return 7

    def __getitem__(self, index):
        self.reads = (*self.reads, index)
        return index

    def get_data_info(self, index):
        return dict(img_path=f'{index}.jpg')


def test_an_error_of_a_users_data_set_stays_what_it_is(monkeypatch):
    monkeypatch.setitem(DATASETS.module_dict, 'Broken', Mock(side_effect=ValueError('mine')))
    with pytest.raises(ValueError, match='mine'):
        DenseRunner.build_dataloader(dict(dataset=dict(type='Broken'), batch_size=1))


def test_a_loader_keeps_what_the_config_asks_for():
    context = multiprocessing.get_context('fork')
    options = dict(num_workers=2, collate_fn=tuple, pin_memory=True, timeout=7., worker_init_fn=print,
                   prefetch_factor=5, persistent_workers=True, multiprocessing_context=context)
    loader = ResumableLoader(DataLoader(Numbers(), batch_size=2, **options), 3)
    kept = {name: getattr(loader, name) for name in options}
    assert kept.pop('worker_init_fn').args[0] is options.pop('worker_init_fn') and kept == options and len(loader) == 4
    with pytest.raises(DataError, match='has 7 images, less than a batch of 9 for each process.*smaller --batch-size'):
        len(ResumableLoader(DataLoader(Numbers(), batch_size=9, drop_last=True), 3))
    assert len(ResumableLoader(DataLoader(Numbers(), batch_size=9), 3)) == 1


def test_a_position_is_gone_on_from_without_what_was_trained():
    loader, random = ResumableLoader(DataLoader(Numbers(), batch_size=2, collate_fn=list), 3), torch.get_rng_state()
    loader.load_state_dict(dict(passes=5, batches=2, images=2))
    assert list(loader) == [[4, 5], [6]] and (loader.passes, loader.batches) == (6, 0)
    assert loader.dataset.inner.reads == (4, 5, 6) and loader.state_dict() == dict(passes=6, batches=0, images=2)
    assert torch.equal(torch.get_rng_state(), random)  # of the training


@pytest.mark.parametrize('before, now, processes, batches', (
    (2, 1, 1, 10), (2, 3, 1, 3), (None, 3, 1, 5), (2, None, 1, 5), (2, 1, 2, 5), (2, 2, 2, 2)))
def test_another_size_of_batches_leaves_out_no_image(before, now, processes, batches, monkeypatch):
    """Rounded down: an image may come twice. Those of all processes count."""
    monkeypatch.setattr(loaders, 'get_dist_info', lambda: (0, processes))
    sampler = BatchSampler(SequentialSampler(range(30)), now or 2, False)
    if now is None:
        del sampler.batch_size
        sampler = SimpleNamespace(sampler=sampler.sampler)  # of the user's own, which tells no size
    loader = ResumableLoader(DataLoader(Numbers(), batch_sampler=sampler), 3)
    loader.load_state_dict(dict(passes=1, batches=5, images=before))
    assert (loader.passes, loader.batches) == (1, batches)


def test_each_image_of_each_process_has_random_numbers_of_its_own(monkeypatch):
    places = []
    for rank in range(2):
        monkeypatch.setattr(loaders, 'get_dist_info', lambda rank=rank: (rank, 2))
        loader = ResumableLoader(DataLoader(Numbers(), batch_sampler=BatchSampler(range(rank, 8, 2), 2, False)), 3)
        places.append([place for batch in loader.batch_sampler for *_, place in batch])
    assert places == [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.fixture
def start_workers(monkeypatch):
    """A function that starts the workers of a loader of some data and gives its iterator; nothing waits for long."""
    monkeypatch.setattr(torch.utils.data._utils, 'MP_STATUS_CHECK_INTERVAL', 0.2)

    def start(dataset, **options):
        loader = DataLoader(dataset, num_workers=2, multiprocessing_context='fork', **options)
        for _ in range(2):  # the second time changes nothing
            bind_workers(loader)
        return iter(loader)
    return start


def test_workers_outlive_signals(start_workers, tmp_path):
    batches = start_workers(Numbers(), worker_init_fn=lambda number: (tmp_path / str(number)).touch())
    assert next(batches) == 0 == next(batches) - 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ['0', '1']
    pids = [str(worker.pid) for worker in batches._workers]
    for name in ('TERM', 'INT'):
        subprocess.run(['kill', f'-{name}', *pids], check=True)  # by another process
    assert [int(batch) for batch in batches] == [2, 3, 4, 5, 6]


def test_workers_that_are_stuck_are_killed(start_workers, tmp_path):
    """In C code that lets no other thread of its process run."""
    batches = start_workers(Numbers(), collate_fn=lambda index: (
        (tmp_path / str(index)).touch(), ctypes.PyDLL(None).sleep(100)))
    end = time.monotonic() + 60
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    end_workers()
    for worker in batches._workers:
        worker.join(20)
    assert [worker.exitcode for worker in batches._workers] == [-signal.SIGKILL] * 2


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
        **CASES[name], **NO_VALIDATION, 'optim_wrapper.accumulative_counts': 1})
    cfg.train_cfg = {key: value for key, value in cfg.train_cfg.items() if (name, key) != ('epochs', 'max_iters')}
    stop_after(stop, cfg)
    cfg.train_dataloader.dataset.indices = count
    got = train(cfg, resume=True)
    told = ''.join(capfd.readouterr())
    assert f'on 6 images, now there are {count}' in told and 'nothing is left' not in told
    assert got['training']['samples'] == count
    assert (got['meta']['epoch'], got['meta']['iter']) == dict(epochs=(2, 3), iterations=(0, 4))[name]
    train(cfg, resume=True)
    assert 'nothing is left to train' in ''.join(capfd.readouterr())
