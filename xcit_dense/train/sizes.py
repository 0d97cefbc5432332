"""One classifier tested at several resolutions: the curve of the paper's figure 3."""
import copy
import json
import time
from pathlib import Path

from ..config.resolution import set_test_size
from ..errors import OutputError
from ..files import OwnFiles, atomic_write
from ..processes import is_first_process, run_on_first

_FILES = ('sizes.json', 'sizes.png')


def test_at_sizes(runner, sizes, crop_ratio: float = None, overwrite: bool = False) -> str:
    """Test at each size; write ``sizes.json`` and the plot ``sizes.png`` into the work dir, after each anew.

    Args:
        runner: A runner that has not tested yet.
        sizes: Different sides of the crop, in pixels.
        crop_ratio: As for `set_test_size`.
        overwrite: Whether files of these names may be replaced that no earlier test wrote.

    Returns:
        A table: a line for each size, with its metrics, seconds and images a second.

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
            runner.load_or_resume()  # is no part of the time
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


test_at_sizes.__test__ = False  # none of pytest's


def _write(rows, folder):
    try:
        with atomic_write(folder / _FILES[0]) as part:
            part.write_text(json.dumps(rows, indent=1) + '\n')
        with atomic_write(folder / _FILES[1]) as part:
            _plot(rows, part)
    except OSError as error:
        raise OutputError(f'cannot write into {folder}: {error}') from error


def _table(rows):
    names = {name: name.rpartition('/')[2] for name in rows[0]}
    names.update(images_per_second='images/s')
    lines = [list(names.values())]
    lines += [[f'{value:.2f}' if isinstance(value, float) else str(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return '\n'.join('  '.join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def _plot(rows, file):
    from matplotlib.figure import Figure  # slow to import
    rows = sorted(rows, key=lambda row: row['size'])
    figure = Figure(figsize=(10, 4.2), layout='constrained')
    left, right = figure.subplots(1, 2, sharex=True)
    sizes = [row['size'] for row in rows]
    for name in rows[0]:
        if name.startswith('accuracy/'):
            left.plot(sizes, [row[name] for row in rows], marker='o', label=name.replace('accuracy/top', 'top-'))
    right.plot(sizes, [row['images_per_second'] for row in rows], marker='o', color='tab:gray')
    left.set(title='accuracy', ylabel='percent')
    right.set(title='speed, with reading of the data', ylabel='images a second', ylim=(0, None))
    for axes in (left, right):
        axes.set(xlabel='size of the image in pixels', xticks=sizes)
        axes.grid(alpha=0.3)
    if left.lines:
        left.legend()
    figure.savefig(file, dpi=110, format='png')
