"""The plots of the page."""
from contextlib import suppress
from pathlib import Path

from benchmarks.report import MODEL_COLOURS
from xcit_dense.report.curves import name_axes, new_figure


def plot_all(results: dict, out) -> list[Path]:
    """Write every plot for which there are figures in what the checks found, and return the files."""
    cells = _joined(cell for checks in results.values() for result in checks.values()
                    for cell in result['facts'].get('cells', ()))
    figures = {
        'gpu_throughput.png': _plot_cells(cells, 'images a second', lambda cell, row: cell['batch'] / row['seconds']),
        'gpu_memory.png': _plot_cells([cell for cell in cells if cell['mode'] == 'training'],
                                      'peak memory of a step (GiB)', lambda _, row: row['peak_bytes'] / 2**30)}
    files = {Path(out, name): figure for name, figure in figures.items() if figure}
    for file, figure in files.items():
        figure.savefig(file, dpi=110)
    return [*files]


def _joined(cells):
    """Return cells with rows by model, each once; what measured a cell again, under a compiler, only adds to it."""
    found = {}
    for cell in cells:
        rows = {row['name']: row for row in cell['rows']}
        known = found.setdefault((cell['arch'], *cell['image'], cell['batch'], cell['mode']), dict(cell, rows=rows))
        known['rows'] = rows | known['rows']
    return list(found.values())


def _plot_cells(cells, label, value_of):
    """Return a figure with a plot for each cell and a bar for each model; None without any value."""
    panels = {}
    for cell in cells:
        title = f'{cell["arch"]} {cell["mode"]}, {"x".join(map(str, cell["image"]))}, batch {cell["batch"]}'
        for name, row in cell['rows'].items():
            with suppress(KeyError):  # it failed, or a CPU has no such memory
                panels.setdefault(title, {})[name] = value_of(cell, row)
    if not panels:
        return None
    columns = min(len(panels), 3)
    figure, plots = new_figure(-(-len(panels) // columns), columns, size=(5, 3))
    for axes, (title, values) in zip(plots, panels.items(), strict=False):
        colours = [MODEL_COLOURS[name.removesuffix(', compiled')] for name in values]
        axes.bar_label(axes.barh([*values], [*values.values()], color=colours), fmt='%.3g', fontsize=7)
        name_axes(axes, title, label, '')
    for axes in plots[len(panels):]:
        axes.remove()
    return figure
