"""Change the length of a training, and everything in a config that depends on it."""
import math
import os

from mmengine.config import Config

from .._utils.text import counted, type_name
from ..data.datasets import LOADERS, check_data, datasets, dicts_in
from ..data.files import read_json
from ..data.folders import find_images, names_in_list
from ..data.unlabelled import UnlabelledSource
from ..errors import ConfigError, DataError
from .check import WARM_UP, schedulers, shortened, warm_up_of, warms_up

#: The unit that a run counts, by its key in ``train_cfg``.
UNITS = dict(max_epochs='epochs', max_iters='iterations')
#: Keys of hooks that count from the beginning of a run, and one that counts back from its end.
_OF_HOOKS = ('switch_epoch', 'switch_iter', 'begin_epoch', 'begin_iter', 'action_epoch', 'action_iter',
             'num_last_epochs')
#: Keys of DINOHook that end before the run does: prototypes that are frozen to the end learn nothing.
_ENDS_BEFORE = ('warmup', 'freeze_last_layer')
#: Data sets whose length is not that of the data sets inside.
_OF_OTHER_LENGTH = ('ClassBalancedDataset', 'KFoldDataset')
#: The environment variables that hold the number of processes, by torchrun, srun and mpirun.
_PROCESSES = ('WORLD_SIZE', 'SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE')
#: The largest annotation file, in bytes, that is read to count images.
_LARGEST = 2**26


def set_length(cfg: Config, length: int, unit: str, epoch_length: int = None, exact: bool = False):
    """Set the length of a training, and stretch everything that depends on it.

    Milestones, ends and switches keep their share of the run. A warm-up keeps its iterations, unless it would take more
    than a tenth of a shorter run. In a run that counts iterations, the number of validations and checkpoints stays the
    same; in one that counts epochs, their interval does.

    Args:
        unit: ``epochs`` or ``iterations``. If the config counts in the other one, the length is converted by the
            number of images, before some are filtered: iterations to whole epochs, rounded up.
        epoch_length: The iterations of an epoch; by default a quick look at the data finds it.
        exact: Whether a run of epochs ends after just these iterations, within its last epoch (`DenseEpochLoop`).

    `ConfigError` if the config counts in an unknown unit, or in the other one while the number of images is unknown.
    """
    key = length_key(cfg, unit)
    ended = key == 'max_epochs' and cfg.train_cfg.pop('max_iters', None)  # within an epoch
    if UNITS[key] != unit:
        if not exact:
            length = _converted(cfg, length, unit, epoch_length)
        elif length % epoch_length:
            cfg.train_cfg.max_iters, length = length, length / epoch_length
        else:
            length //= epoch_length
        unit = UNITS[key]
    before = cfg.train_cfg[key]
    if length == before and not ended:
        return
    iterations = None if unit == 'iterations' else epoch_length or _iterations_of_epoch(cfg)
    _Stretch(before, length, unit, iterations).apply(cfg, key)


def length_key(cfg: Config, option: str) -> str:
    """Return the key of ``train_cfg`` that has the length of a training; `ConfigError` without one."""
    key = next((key for key in UNITS if (cfg.get('train_cfg') or {}).get(key)), None)
    if key is None:
        raise ConfigError(f'--{option}: the train_cfg of this config has neither max_epochs nor max_iters. Set the '
                          'length of its loop with --cfg-options train_cfg.KEY=N')
    return key


def set_val_interval(cfg: Config, interval: int):
    """Set how often a training validates; checkpoints that were saved as often still are."""
    loop, saving = cfg.train_cfg, (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    by_epoch = bool(loop.get('max_epochs'))
    usual = loop.get('val_interval', 1 if by_epoch else 1000)  # of mmengine's loops
    if saving.get('interval') == usual and saving.get('by_epoch', True) == by_epoch:
        saving['interval'] = interval
    loop['val_interval'] = interval


def shorten_warm_up(cfg: Config, epoch_length: int) -> str:
    """Shorten a warm-up to a tenth of the run, if it is longer; return the reason, or ''."""
    _, node, before, _, shorter = warm_up_of(cfg, epoch_length) or ('', {}, 0, 0, None)
    if node.get('end') == shorter:
        return ''
    node['end'] = shorter
    return f'the warm-up takes a tenth of the run, before {counted(before, "iterations")}'


class _Stretch:

    def __init__(self, before, after, unit, of_epoch):
        self._before, self._after, self._unit, self._of_epoch = before, after, unit, of_epoch
        self._whole = math.ceil(after)

    def apply(self, cfg, key):
        loop = cfg.train_cfg
        loop[key] = self._whole
        if 'val_begin' in loop:
            loop['val_begin'] = min(self._at(loop['val_begin']), self._whole)
        if 'val_interval' in loop:
            loop['val_interval'] = self._interval(loop['val_interval'])
        if loop.get('dynamic_intervals'):
            loop['dynamic_intervals'] = [(self._at(begin), interval if self._unit == 'epochs' else self._interval(
                interval)) for begin, interval in loop['dynamic_intervals']]
        saving = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
        counts = 'epochs' if saving.get('by_epoch', True) else 'iterations'
        if counts == self._unit and saving.get('interval', -1) > 0:
            saving['interval'] = self._interval(saving['interval'])
        for node in dicts_in(cfg.get('custom_hooks') or ()):
            for key, value in node.items():
                if key in _OF_HOOKS and isinstance(value, int) and value > 0:
                    node[key] = math.ceil(self._at(value))
                elif key in _ENDS_BEFORE and node.get('type') == 'DINOHook':
                    node[key] = min(self._at(value), self._whole - 1)
        parts = [part for _, part in schedulers(cfg.get('param_scheduler'), 'param_scheduler')]
        warm_ups = [part for part in parts  # those that raise the rate only at the beginning of the run
                    if warms_up(part) and not (part['end'] == self._before and _unit_of(part) == self._unit)]
        ends = {}  # at which others begin
        for part in warm_ups:
            unit = _unit_of(part)
            before, part['end'] = part['end'], shortened(part, self._longest(part['end'], unit))
            ends[before, unit] = part['end']
        for part in parts:
            if not any(part is other for other in warm_ups):
                self._scheduler(part, ends)

    def _at(self, place):
        """Return the place in the new run for one in the original run, in either unit."""
        if place == self._before or place % 1:  # the end, also of a run that ended within an epoch
            return self._after
        return max(round(place * self._after / self._before), min(place, 1))

    def _interval(self, interval):
        if self._unit == 'epochs':
            return min(interval, self._whole)
        return max(self._after // max(self._before // interval, 1), 1) if interval <= self._before else interval

    def _longest(self, end, unit):
        """Return the latest end of a warm-up; one with a larger share of the original run keeps it, up to a quarter."""
        before, after = self._before, self._after
        if unit != self._unit:
            if unit == 'epochs' or not self._of_epoch:
                return end
            before, after = before * self._of_epoch, after * self._of_epoch
        if after >= before:
            return end
        return round(after * max(WARM_UP, min(end / before, 0.25)))

    def _scheduler(self, part, ends):
        begin, end, unit = part.get('begin', 0), part.get('end'), _unit_of(part)
        if end not in (None, float('inf')):
            part['end'] = self._at(end)
        if begin:
            part['begin'] = min(ends.get((begin, unit), self._at(begin)), part.get('end', float('inf')) - 1)
        for name in ('T_max', 'total_steps', 'step_size'):
            if isinstance(value := part.get(name), int):
                part[name] = (part['end'] - part.get('begin', 0) if end is not None and value == end - begin
                              else part['end'] if value == end else self._at(value))
        if isinstance(part.get('periods'), (list, tuple)):
            part['periods'] = [self._at(period) for period in part['periods']]
        if isinstance(part.get('milestones'), (list, tuple)):
            places = {self._at(place) for place in part['milestones']}
            part['milestones'] = sorted(place for place in places if place < self._after or unit != self._unit)


def _unit_of(scheduler):
    return UNITS['max_epochs' if scheduler.get('by_epoch', True) else 'max_iters']


def _converted(cfg, length, unit, epoch_length):
    """Return a length in the other unit."""
    other, of_epoch = 'iterations' if unit == 'epochs' else 'epochs', epoch_length or _iterations_of_epoch(cfg)
    if not of_epoch:
        check_data(cfg, LOADERS[:1])  # it may not be there
        raise ConfigError(f'--{unit}: this config counts {other}, and a quick look at the data does not show how many '
                          f'iterations an epoch has. Use --{other} N')
    return length * of_epoch if unit == 'epochs' else -(-length // of_epoch)


def _iterations_of_epoch(cfg):
    """Return the iterations of an epoch, before images are filtered; None if a quick look does not show them."""
    images, batch = _count_images(cfg), (cfg.get('train_dataloader') or {}).get('batch_size')
    if not images or not batch:
        return None
    return -(-images // (batch * process_count())) or None


def process_count() -> int:
    """Return the number of processes of a run, by the environment that a launcher sets."""
    processes = next(filter(None, map(os.environ.get, _PROCESSES)), '1')
    return int(processes) if processes.isdecimal() else 1


def _count_images(cfg):
    """Return the number of training images; None if they are not on a local disk, their list is long, or a data set
    repeats some of them or leaves some out."""
    times, total = repeats_of(cfg), 0
    if times is None:
        return None
    for dataset in datasets(cfg, LOADERS[:1]):
        file = dataset.ann_file
        try:
            if dataset.get('ann_file') and file.suffix == '.json':
                if file.stat().st_size > _LARGEST:
                    return None
                total += len(read_json(file)['images'])
            elif dataset.reader == 'UnlabelledImages':
                total += len(UnlabelledSource(dataset).images())
            elif dataset.get('ann_file'):
                total += len(names_in_list(file))
            else:
                key = next(iter(dataset.prefixes), None)
                total += len(find_images(dataset.folder(key))[1])
        except (OSError, ValueError, LookupError, TypeError, DataError):
            return None
    return total * times


def repeats_of(cfg):
    """Return how often an epoch has each image of the training data; None if that differs between images."""
    loader = cfg.get(LOADERS[0]) or {}
    nodes = [(type_name(node.get('type')), node) for node in dicts_in(loader.get('dataset'))]
    times = [node['times'] for kind, node in nodes if kind == 'RepeatDataset']
    if not nodes or times and len(datasets(cfg, LOADERS[:1])) > 1 or loader.get('num_batch_per_epoch') or any(
            kind in _OF_OTHER_LENGTH or node.get('indices') is not None for kind, node in nodes):
        return None
    return math.prod(times)
