"""Test one classifier at several resolutions, as in figure 3 of the paper."""
import copy
import json
import time
from pathlib import Path

from .._utils.files import OwnFiles, atomic_write
from .._utils.processes import is_first_process, run_on_first
from ..config.testing import set_test_size
from ..draw.plots import INK, legend_below, line_style, name_axes, new_figure
from ..errors import OutputError

_FILES = ('sizes.json', 'sizes.png')


def test_at_sizes(runner, sizes, crop_ratio: float = None, overwrite: bool = False) -> str:
    """Test at each size; after each one update ``sizes.json`` and the plot ``sizes.png`` in the work dir.

    Args:
        runner: A runner that has not tested yet.
        sizes: Different sides of the crop, in pixels.
        crop_ratio: As for `set_test_size`.
        overwrite: Whether to replace files of these names that no earlier test wrote.

    Returns:
        A table with a line for each size: its metrics, seconds and images per second.

    Raises:
        ConfigError: As for `set_test_size`.
        OutputError: There are such files, or they cannot be written.
    """
    own, rows, loader = OwnFiles(runner.work_dir, 'test', overwrite), [], runner.cfg.test_dataloader
    run_on_first(own.claim, *_FILES)
    try:
        for size in sizes:
            runner.cfg.test_dataloader = copy.deepcopy(loader)
            set_test_size(runner.cfg, size, crop_ratio)
            runner.test_loop.dataloader = runner.build_dataloader(runner.cfg.test_dataloader, runner.seed)
            runner.load_or_resume()  # not part of the measured time
            start = time.perf_counter()
            metrics = runner.test()
            seconds = time.perf_counter() - start
            images = len(runner.test_dataloader.dataset)
            rows.append(dict(size=size, **metrics, seconds=seconds, images_per_second=images / seconds))
            run_on_first(_write, rows, Path(runner.work_dir))
    finally:
        if is_first_process():
            own.close()
    return _table(rows)


test_at_sizes.__test__ = False  # not a test of pytest


def _write(rows, folder):
    try:
        with atomic_write(folder / _FILES[0]) as part:
            part.write_text(json.dumps(rows, indent=1) + '\n')
        with atomic_write(folder / _FILES[1]) as part:
            _plot(rows, part)
    except OSError as error:
        raise OutputError(f'cannot write to {folder}: {error}') from error


def _table(rows):
    names = {name: name.rpartition('/')[2] for name in rows[0]}
    names.update(images_per_second='images/s')
    lines = [list(names.values())]
    lines += [[f'{value:.2f}' if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return '\n'.join('  '.join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def _plot(rows, file):
    rows = sorted(rows, key=lambda row: row['size'])
    figure, (left, right) = new_figure(1, 2, size=(5, 4.2))
    sizes = [row['size'] for row in rows]
    for place, name in enumerate(name for name in rows[0] if name.startswith('accuracy/')):
        left.plot(sizes, [row[name] for row in rows], label=name.replace('accuracy/top', 'top-'), **{
            **line_style(place), 'marker': 'o', 'markevery': None})
    right.plot(sizes, [row['images_per_second'] for row in rows], marker='o', markersize=4, color=INK)
    name_axes(left, 'accuracy', 'image size (pixels)', 'accuracy (%)')
    name_axes(right, 'speed, including data loading', 'image size (pixels)', 'images per second')
    right.set_ylim(0, None)
    for axes in (left, right):
        axes.set_xticks(sizes)
    if left.lines:
        legend_below(left)
    figure.savefig(file, dpi=110, format='png')
