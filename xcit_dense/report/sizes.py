"""Accuracy, time and memory of a test by image size, as in figure 3 of the paper: ``test --sizes``."""
import copy
import gc
import json
import time
from contextlib import contextmanager, suppress
from numbers import Real
from pathlib import Path

import torch
from mmengine.dist import all_gather_object
from mmengine.hooks import Hook

from .._utils.files import OwnFiles, atomic_write
from .._utils.machine import describe_machine, forget_peak_memory, own_peak_memory
from .._utils.processes import is_first_process, return_freed_memory, run_on_first
from .._utils.text import counted, first_line
from ..config.settings import Settings, apply_settings
from ..config.testing import find_resolution, set_test_size, set_tta
from ..data.datasets import LOADERS, datasets
from ..errors import ConfigError, OutOfMemory, XCiTDenseError
from ..train.loops import is_out_of_memory
from .content import HEADLINES, Column, Row, tell_rows, tested_file
from .curves import INK, legend_below, line_style, name_axes, new_figure
from .hooks import ReportHook

#: What such a test writes into the work dir.
FILES = 'sizes.json', 'sizes.png'
_SIZE, _SECONDS, _TIME = 'size', 'seconds', 'ms/image'


def configs_by_size(cfg, sizes, crop_ratio: float = None, tta: bool = False, given=()) -> dict:
    """Return, by size in pixels, a copy of a config without views that tests at it.

    It does so as with ``--image-size`` alone, or for a classifier ``--size``: see `apply_settings`, `set_test_size`.
    `ConfigError` if a size is impossible, or has no effect on this config.
    """
    if tta and cfg.get('tta_pipeline'):
        raise ConfigError('--sizes and --tta: the tta_pipeline of the config has image sizes of its own. Remove it')
    crops = crop_ratio or any(find_resolution(dataset)[0] for dataset in datasets(cfg, LOADERS[-1:]))
    found = {size: copy.deepcopy(cfg) for size in sizes}
    for size, changed in found.items():
        if changed.test_dataloader.get('persistent_workers'):  # of each size, they would wait for the end
            changed.test_dataloader.persistent_workers = False
        with _named(size):
            if size < 16:
                raise ConfigError('an image must have at least 16 pixels')
            if crops:
                set_test_size(changed, size, crop_ratio)
            else:
                apply_settings(changed, Settings(size), given, LOADERS[-1:])
        if tta:
            set_tta(changed)
    return found


def measure_at_sizes(runner, cfgs: dict, overwrite: bool = False):
    """Test at several sizes, after a trial of each with one image. `FILES` are updated after each; the log has a table.

    If the runner has a `ReportHook`, the report is of the last size, and shows all. `XCiTDenseError` if a size cannot
    be tested, or there are such files.
    """
    own, hook, loaders = OwnFiles(runner.work_dir, 'test', overwrite), SizesHook(cfgs), {}
    run_on_first(own.claim, *FILES)
    for report in runner.hooks:
        if isinstance(report, ReportHook):
            report.by_size = hook
    runner.register_hook(hook)
    try:
        runner.call_hook('before_run')
        runner.load_or_resume()  # not part of the measured time
        runner.model.eval()
        runner.logger.info(f'--sizes: one image at each of {", ".join(map(str, cfgs))} pixels, to see that it works')
        for size, cfg in cfgs.items():
            loaders[size] = runner.build_dataloader(cfg.test_dataloader, runner.seed)
            _set_window(runner.model, cfg)
            with _named(size, Exception), torch.no_grad():  # of any type: layers, heads and runtimes raise their own
                runner.model.test_step(loaders[size].collate_fn([loaders[size].dataset[0]]))
        for number, size in enumerate(cfgs, 1):
            runner.logger.info(f'--sizes: {size} pixels, size {number} of {len(cfgs)}{hook.time_left()}')
            hook.size = size
            runner.cfg.test_dataloader = cfgs[size].test_dataloader  # a report reads it
            runner.test_loop.dataloader = loaders.pop(size)
            _set_window(runner.model, cfgs[size])
            with _named(size):
                runner.test()
    finally:
        if hook.rows and is_first_process():
            runner.logger.info(f'accuracy by image size, in {Path(runner.work_dir, FILES[0])}:\n{hook.table()}')
            own.close()


def _set_window(model, cfg):
    """Set the sliding window of a segmentor, which depends on the image size."""
    for part in model.modules():
        if isinstance(test_cfg := getattr(part, 'test_cfg', None), dict) and test_cfg.get('mode') == 'slide':
            part.test_cfg = (cfg.model.get('module') or cfg.model).test_cfg


@contextmanager
def _named(size, kinds=(ValueError, OSError)):
    """Context whose errors name a size; those of some kinds are the user's, in one line."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f'--sizes {size}: out of memory: {first_line(error)}. To need less: a smaller '
                              '--batch-size, --amp, or omit this size') from error
        if isinstance(error, XCiTDenseError):
            raise type(error)(f'--sizes {size}: {error}') from error
        if isinstance(error, kinds) and not isinstance(error, (AttributeError, KeyError, NameError, TypeError)):
            raise ConfigError(f'--sizes {size}: {first_line(error)}') from error
        raise RuntimeError(f'--sizes {size}: the test failed') from error


class SizesHook(Hook):
    """Measures each test, and keeps a row of it: ``rows``, by size; ``size`` is that of the next test."""
    priority = 'VERY_HIGH'  # the time has no other hook in it, and LoggerHook resets the peak of a GPU

    def __init__(self, sizes):
        self.sizes, self.size, self.rows = list(sizes), None, {}

    def before_test_epoch(self, runner):
        gc.collect()
        return_freed_memory()  # of the size before
        self._on_gpu = any(parameter.is_cuda for parameter in runner.model.parameters())
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.memory = 'peak GPU memory (GiB)' if self._on_gpu else (
            f'peak memory of the process{"" if forget_peak_memory() else " so far"} (GiB)')
        self._busy, self._peak, self._start = [], 0, time.perf_counter()

    def before_test_iter(self, runner, batch_idx, data_batch=None):
        self._begin = time.perf_counter()  # the batch is read already

    def after_test_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if self._on_gpu:
            torch.cuda.synchronize()
            self._peak = max(self._peak, torch.cuda.max_memory_allocated())
        self._busy.append((time.perf_counter() - self._begin, len(outputs)))

    def after_test_epoch(self, runner, metrics=None):
        """Keep the row, and write the files."""
        seconds = time.perf_counter() - self._start
        with suppress(OSError):  # only Linux knows it
            self._peak = self._peak if self._on_gpu else own_peak_memory()
        # the first batch of a size is slower
        busy, images = map(sum, zip(*(self._busy[1:] or self._busy), strict=True))
        busy, images, peaks = zip(*all_gather_object((busy, images, self._peak)), strict=True)
        metrics = {name: float(value) for name, value in (metrics or {}).items() if isinstance(value, Real)}
        self.rows[self.size] = {_SIZE: self.size, **metrics, _SECONDS: seconds, _TIME: 1000 * sum(busy) / sum(images),
                                self.memory: max(peaks) / 2**30 or None}
        run_on_first(self._write, runner)

    def time_left(self) -> str:
        """Return about how long the other sizes will take, for a log: as if time grew with the pixels."""
        share = sum(size**2 for size in self.sizes if size not in self.rows) / max(sum(s**2 for s in self.rows), 1)
        minutes = round(share * sum(row[_SECONDS] for row in self.rows.values()) / 60)
        return f', about {counted(minutes, "minutes")} left' if minutes else ''

    def content(self) -> tuple:
        """Return the rows for a report: the size that is tested, columns, rows and figure."""
        columns = [*(Column(name, name, 4) for name in self._names()),
                   Column(_SECONDS, _SECONDS, 1, 'the whole test, with reading of images and metrics'),
                   Column(_TIME, _TIME, 1, 'the model, without reading of images, in each process'),
                   Column(self.memory, self.memory, 2)]
        return self.size, columns, [Row(str(row[_SIZE]), row) for row in self._in_order()], self._figure()

    def table(self) -> str:
        return tell_rows('size', *self.content()[1:3])

    def _in_order(self):
        return [self.rows[size] for size in self.sizes if size in self.rows]

    def _names(self):
        """Return the names of the metrics to show: the usual ones, or if there is none of them all, as in the JSON."""
        measured = _SIZE, _SECONDS, _TIME, self.memory
        names = dict.fromkeys(name for row in self._in_order() for name in row if name not in measured)
        return [name for name in names if name.endswith(HEADLINES)] or list(names)

    def _figure(self):
        names, sizes = self._names(), sorted(self.rows)
        rows, ticks = [self.rows[size] for size in sizes], sizes[:1]
        for size in sizes:  # as many as there is room for
            ticks += [size] if size - ticks[-1] >= max((sizes[-1] - sizes[0]) / 10, 1) else []
        percent = ' (%)' * any(name.endswith(HEADLINES) for name in names)
        titles = f'metrics{percent}', f'{_TIME} of the model', self.memory
        figure, plots = new_figure(1, 2 + all(row[self.memory] for row in rows), size=(4.6, 4.2))
        for axes, title, keys in zip(plots, titles, (names, [_TIME], [self.memory]), strict=False):
            for place, key in enumerate(keys):
                factor = 100 if 'mAP' in key and not key.startswith('multi-label') else 1  # of mmdet, from 0 to 1
                axes.plot(sizes, [factor * row.get(key, float('nan')) for row in rows], label=key,
                          **{**line_style(place), **(dict(color=INK) if keys is not names else {}),
                             'marker': 'o', 'markevery': None})
            name_axes(axes, '', 'image size (pixels)', title)
            axes.set_xticks(ticks)
            if keys is not names:
                axes.set_ylim(0, 1.1 * max(row[keys[0]] for row in rows))
        if names:
            legend_below(plots[0], columns=2)
        return figure

    def _write(self, runner):
        found = dict(checkpoint=tested_file(runner), config=runner.cfg.filename, machine=describe_machine(),
                     sizes=self._in_order())
        with atomic_write(Path(runner.work_dir, FILES[0])) as part:
            part.write_text(json.dumps(found, indent=1) + '\n')
        with atomic_write(Path(runner.work_dir, FILES[1])) as part:
            self._figure().savefig(part, dpi=110, format='png')
