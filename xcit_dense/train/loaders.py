"""Training data whose order and augmentation depend only on the seed and the position in the run.

A sample's random numbers are seeded by the run's seed, the pass over the data, and the sample's place in the pass over
all processes. So a resumed run continues with the next batch without reading the previous ones, also with another
number of workers, and one process draws the same numbers as several together. Transforms with their own state, such as
a cache of images to mix in, are not covered.
"""
import atexit
import ctypes
import signal
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from mmengine.dist import get_dist_info
from mmengine.registry import DATASETS
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from .._utils.processes import STOP_SIGNALS, end_workers, note_workers
from .._utils.text import counted
from ..errors import ConfigError, DataError
from .resuming import isolated_random_state

#: Linux's option of prctl: send me a signal when my parent ends.
_PR_SET_PDEATHSIG = 1


class ResumableLoader(DataLoader):
    """A training data loader that can start at any position, in place of one that has not been iterated."""

    def __init__(self, loader: DataLoader, seed: int):
        #: Completed passes over the data, and batches of the current pass that were used.
        self.passes = self.batches = 0
        self._whole_batch = loader.batch_size if loader.drop_last else None
        kept = ('num_workers', 'collate_fn', 'pin_memory', 'timeout', 'worker_init_fn', 'prefetch_factor',
                'persistent_workers', 'multiprocessing_context')
        super().__init__(
            loader.dataset if isinstance(loader.dataset, NamedErrors) else NamedErrors(loader.dataset),
            batch_sampler=_Places(loader.batch_sampler, seed), **{name: getattr(loader, name) for name in kept},
            generator=torch.Generator())  # its own: torch draws the workers' seeds from it
        bind_workers(self)

    def __iter__(self):
        """Yield the rest of a pass; nothing is read before the first batch is requested."""
        self.batch_sampler.start(self.passes, self.batches)
        with explained('train_dataloader'):
            for batch in super().__iter__():
                self.batches += 1
                yield batch
        self.passes, self.batches = self.passes + 1, 0

    def __len__(self):
        """Return the number of batches in a pass; `DataError` if it is 0, as incomplete ones are left out."""
        count = super().__len__()
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

    def _images(self):
        size = self.batch_sampler.batch_size
        return size * get_dist_info()[1] if isinstance(size, int) else None


@contextmanager
def explained(name: str):
    """Context in which errors from a worker of a data loader become a `DataError`."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if text.startswith('Caught DataError in DataLoader worker'):  # with the worker's traceback
            raise DataError(text.partition('DataError: ')[2].strip()) from error
        if not text.startswith('DataLoader worker'):
            raise
        raise DataError(f'a worker of the {name} died ({text.strip()}). If memory ran out, use fewer workers '
                        f'(--cfg-options {name}.num_workers=0) or smaller images.') from error


def bind_workers(loader: DataLoader):
    """Let the workers of a loader end with this process or on its request, and not before.

    A blocked worker would stay forever. A worker ended by a signal to all processes of the run would end this process
    in the middle of saving: SIGTERM and SIGINT stay blocked in it, and in threads and processes that it starts.
    """
    loader.worker_init_fn = partial(_start_worker, loader.worker_init_fn)
    loader._get_iterator = partial(_with_signals_waiting, loader._get_iterator)
    atexit.unregister(end_workers)  # once, and before multiprocessing sends them SIGTERM and waits forever
    atexit.register(end_workers)


def _with_signals_waiting(start):
    """Start workers, which inherit that the signals are blocked."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        iterator = start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    note_workers(iterator)
    return iterator


def _start_worker(init, number):
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if init:
        init(number)


class _Places(Sampler):
    """Batches of ``(index, seed, pass, place)`` from a batch sampler of indices."""

    def __init__(self, batch_sampler, seed):
        self.inner, self._seed = batch_sampler, seed
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
                yield [(index, self._seed, number, place + world_size * j) for j, index in enumerate(batch)]
            place += world_size * len(batch)

    def __len__(self):
        return len(self.inner)


class NamedErrors(Dataset):
    """A data set around another one, built or as a config, with its attributes; errors name the sample and its file.

    An index may come with numbers, as from `_Places`: then they alone determine the sample's random numbers.
    `ConfigError` for a stream, which has no samples with numbers that a run could go back to.
    """

    def __init__(self, dataset):
        vars(self)['inner'] = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset
        if isinstance(self.inner, IterableDataset):
            raise ConfigError(f'no run can continue within a stream such as {type(self.inner).__name__} '
                              '(IterableDataset): give a data set with numbered samples, or set '
                              "runner_type = 'Runner' for mmengine's runner")

    def __len__(self):
        return len(self.inner)

    def __getattr__(self, name):
        if name == 'inner':  # not set yet: while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __setattr__(self, name, value):  # such as a hook's new pipeline
        setattr(self.inner, name, value)

    def __getitems__(self, indices):
        """Return the samples of a batch, one by one: each sample has its own random numbers and errors."""
        return [self[index] for index in indices]

    def __getitem__(self, index):
        index, *seed = index if isinstance(index, tuple) else (index, )
        try:
            with isolated_random_state(*seed) if seed else nullcontext():
                return self.inner[index]
        except Exception as error:
            if isinstance(error, IndexError) and isinstance(index, int) and index >= len(self):
                raise  # Python's loops end with it
            raise DataError(f'cannot read sample {index}, {file_of(self.inner, index)}: '
                            f'{type(error).__name__}: {error}') from error


def file_of(dataset, index) -> str:
    """Return the image file of a sample, if the data set has it."""
    try:
        info = dataset.get_data_info(index)
        return str(info.get('img_path') or info)
    except Exception:  # of any type: this is part of the message of another error
        return f'number {index}'
