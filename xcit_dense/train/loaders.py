"""Training data whose order and augmentation depend only on the seed and the position in the run.

A sample's random numbers are seeded by the run's seed, the pass over the data, and the sample's place in the pass over
all processes. So a resumed run continues with the next batch without reading the previous ones, also with another
number of workers, and one process draws the same numbers as several together. Transforms with their own state, such as
a cache of images to mix in, are not covered.
"""
import atexit
import ctypes
import logging
import os
import signal
import threading
from functools import partial

import torch
from mmengine.dist import get_dist_info
from mmengine.logging import print_log
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from .._utils.processes import end_workers, note_workers
from .._utils.text import counted
from ..errors import ConfigError, DataError
from .resuming import isolated_random_state

#: Linux's option of prctl: send me a signal when my parent ends.
_PR_SET_PDEATHSIG = 1


class ResumableLoader(DataLoader):
    """A training data loader that can start at any position.

    A stream (torch's `IterableDataset`) cannot: it always starts at the beginning of a pass.

    Args:
        loader: The loader to replace, which must not have been iterated.
        seed: The run's seed.
    """

    def __init__(self, loader: DataLoader, seed: int):
        #: Completed passes over the data, and batches of the current pass that were used.
        self.passes = self.batches = 0
        self._seed = seed
        self._is_stream = isinstance(loader.dataset, IterableDataset)
        self._whole_batch = loader.batch_size if loader.drop_last else None
        parts = (dict(dataset=loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last)
                 if self._is_stream else
                 dict(dataset=_SeededDataset(loader.dataset, seed), batch_sampler=_Places(loader.batch_sampler)))
        super().__init__(
            **parts,
            num_workers=loader.num_workers, collate_fn=loader.collate_fn, pin_memory=loader.pin_memory,
            timeout=loader.timeout, worker_init_fn=loader.worker_init_fn, prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers, multiprocessing_context=loader.multiprocessing_context,
            generator=torch.Generator())  # its own: torch draws the workers' seeds from it
        bind_workers(self)

    def __iter__(self):
        """Yield the rest of a pass; nothing is read before the first batch is requested."""
        if not self._is_stream:
            self.batch_sampler.start(self.passes, self.batches)
        try:
            for batch in super().__iter__():
                self.batches += 1
                yield batch
        except RuntimeError as error:
            explain(error, 'train_dataloader', self)
            raise
        self.passes, self.batches = self.passes + 1, 0

    def __len__(self):
        """Return the number of batches in a pass.

        Raises:
            ConfigError: It is a stream of unknown length.
            DataError: There is none, as the data is less than a batch and incomplete batches are left out.
        """
        try:
            count = super().__len__()
        except TypeError as error:
            raise ConfigError(f'{type(self.dataset).__name__} is a stream of unknown length, and mmengine needs the '
                              'length for schedules and logs: add a __len__ (samples in a pass)') from error
        if not count and self._whole_batch:
            raise DataError(f'the training data has {counted(len(self.dataset), "images")}, less than a batch of '
                            f'{self._whole_batch} for each process, and incomplete batches are left out (drop_last): '
                            'give a smaller --batch-size')
        return count

    def state_dict(self) -> dict:
        """Return the position as numbers, with the number of images in a step of all processes."""
        return dict(passes=self.passes, batches=self.batches, images=self._images())

    def load_state_dict(self, state: dict):
        """Go to a position; the next iteration starts there."""
        self.passes, self.batches = state['passes'], state['batches']
        before, now = state.get('images'), self._images()
        if before and now:  # another batch size must not skip an image
            self.batches = self.batches * before // now
        if self._is_stream and self.batches:
            print_log(f'{type(self.dataset).__name__} is a stream and cannot continue where it stopped: it starts '
                      f'again from the beginning, and repeats {counted(self.batches, "batches")}', logger='current',
                      level=logging.WARNING)

    def _images(self):
        size = self.batch_size if self._is_stream else self.batch_sampler.batch_size
        return size * get_dist_info()[1] if isinstance(size, int) else None


def explain(error: RuntimeError, name: str, loader: DataLoader):
    """Raise a `DataError` if an error comes from a worker of a data loader; otherwise return.

    Args:
        error: The error that was raised in this process.
        name: The loader's name in the config.
        loader: The loader.
    """
    text = str(error)
    if text.startswith('Caught DataError in DataLoader worker'):  # with the worker's traceback
        raise DataError(text.partition('DataError: ')[2].strip()) from error
    if text.startswith('DataLoader worker'):
        files = ', '.join(getattr(loader.dataset, 'open_files', list)()) or 'unknown'
        raise DataError(f'a worker of the {name} died ({text.strip()}). It was reading one of: {files}. If memory ran '
                        f'out, use fewer workers (--cfg-options {name}.num_workers=0) or smaller images.') from error


def bind_workers(loader: DataLoader):
    """Let the workers of a loader end with this process or on its request, and not before.

    A blocked worker would stay forever. A worker ended by a signal to all processes of the run would end this process
    in the middle of saving. Threads and processes that a worker starts inherit that SIGTERM is blocked.
    """
    if getattr(loader.worker_init_fn, 'func', None) is not _start_worker:
        loader.worker_init_fn = partial(_start_worker, loader.worker_init_fn, os.getpid())
    if '_get_iterator' not in vars(loader):
        loader._get_iterator = partial(_with_signals_waiting, loader._get_iterator)
    atexit.unregister(end_workers)  # once, and before multiprocessing waits for them
    atexit.register(end_workers)


def _with_signals_waiting(start):
    """Start workers: all their threads inherit that SIGTERM is blocked, so that only one thread receives it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        iterator = start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    note_workers(iterator)
    return iterator


def _start_worker(init, parent, number):
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_wait_for_end, args=(parent, ), daemon=True).start()
    if init:
        init(number)


def _wait_for_end(parent):
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
        pass
    os._exit(0)  # torch raises an error for another code


class _Places(Sampler):
    """Batches of ``(index, pass, place)`` from a batch sampler of indices."""

    def __init__(self, batch_sampler):
        self.inner = batch_sampler
        self.sampler = batch_sampler.sampler  # mmengine's hook looks for it here
        self.batch_size = getattr(batch_sampler, 'batch_size', None)
        self._pass = self._skipped = 0

    def start(self, number, skipped):
        """Make the next iteration yield pass ``number`` without its first ``skipped`` batches."""
        self._pass, self._skipped = number, skipped
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(number)

    def __iter__(self):
        place, world_size = get_dist_info()
        number, skipped = self._pass, self._skipped
        for i, batch in enumerate(self.inner):
            if i >= skipped:
                yield [(index, number, place + world_size * j) for j, index in enumerate(batch)]
            place += world_size * len(batch)

    def __len__(self):
        return len(self.inner)


class Around(Dataset):
    """A data set around another one, with the same attributes."""

    def __init__(self, dataset):
        vars(self)['inner'] = dataset

    def __len__(self):
        return len(self.inner)

    def __getitems__(self, indices):
        """Return the samples of a batch, one by one: each sample has its own random numbers and errors."""
        return [self[index] for index in indices]

    def __getattr__(self, name):
        if name == 'inner':  # not set yet: while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name, value):  # such as a hook's new pipeline
        setattr(self.inner, name, value)


class NamedErrors(Around):
    """A data set whose errors name the sample and its file.

    Args:
        dataset: The data set.
        num_workers: Number of workers of its loader.
    """

    def __init__(self, dataset, num_workers: int = 0):
        super().__init__(dataset)
        vars(self)['_open'] = torch.full((max(num_workers, 1), ), -1).share_memory_()  # index that each worker reads

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info()
        self._open[worker.id if worker else 0] = index if isinstance(index, int) else -1
        try:
            return _sample(self.inner, index)
        except Exception as error:
            if isinstance(error, IndexError) and isinstance(index, int) and index >= len(self):
                raise  # Python's loops end with it
            raise DataError(f'cannot read sample {index}, {file_of(self.inner, index)}: '
                            f'{type(error).__name__}: {error}') from error

    def open_files(self):
        """Return the last file that each worker started to read."""
        return [file_of(self.inner, index) for index in self._open.tolist() if index >= 0]


class _SeededDataset(Around):
    """A data set whose random numbers depend on the place of a sample."""

    def __init__(self, dataset, seed):
        super().__init__(dataset)
        vars(self)['_seed'] = seed

    def __getitem__(self, place):
        if not isinstance(place, tuple):
            return self.inner[place]
        index, *numbers = place
        with isolated_random_state(self._seed, *numbers):
            return _sample(self.inner, index)


def named_errors(dataset, sampler=None, num_workers: int = 0):
    """Build a data set with `NamedErrors`; a stream is returned as it is.

    Args:
        dataset: The data set, built or as a config.
        sampler: Whether its loader has a sampler, for samples or batches.
        num_workers: Number of workers of its loader.

    Raises:
        ConfigError: It is a stream, and there is a sampler.
    """
    dataset = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset
    if not isinstance(dataset, IterableDataset):
        return NamedErrors(dataset, num_workers)
    if sampler:
        raise ConfigError(f'{type(dataset).__name__} is a stream (IterableDataset), which does not work with a '
                          'sampler: set sampler=None and batch_sampler=None in its data loader')
    return dataset


def _sample(dataset, index):
    """Return a sample in the same way as torch's data loader."""
    several = getattr(dataset, '__getitems__', None)
    return several([index])[0] if several else dataset[index]


def file_of(dataset, index) -> str:
    """Return the image file of a sample, if the data set has it."""
    try:
        info = dataset.get_data_info(index)
        return str(info.get('img_path') or info)
    except Exception:  # of any type: this is part of the message of another error
        return f'number {index}'
