"""The plots of the page."""
from contextlib import suppress
from pathlib import Path

from benchmarks.report import MODEL_COLOURS
from gpu.operators import GROUPS, OTHER
from xcit_dense.report.curves import COLOURS, FAINT, INK, name_axes, new_figure

_GROUP_COLOURS = dict(zip(GROUPS, COLOURS, strict=False)) | {OTHER: FAINT}


def plot_all(results: dict, out) -> list[Path]:
    """Write every plot for which there are figures in what the checks found, and return the files."""
    every = [result['facts'] for checks in results.values() for result in checks.values()]
    cells = _joined(cell for facts in every for cell in facts.get('cells', ()))
    figures = {
        'gpu_throughput.png': _plot_cells(cells, 'images a second', lambda cell, row: cell['batch'] / row['seconds']),
        'gpu_memory.png': _plot_cells([cell for cell in cells if cell['mode'] == 'training'],
                                      'peak memory of a step (GiB)', lambda _, row: row['peak_bytes'] / 2**30),
        'gpu_time.png': _plot_time([facts for facts in every if 'parts' in facts])}
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


def _plot_time(profiles):
    """Return a figure with the time of each branch of a block, and of a step, by group, and the least that it takes."""
    if not profiles:
        return None
    figure, plots = new_figure(len(profiles), 2, size=(5.4, 4))
    for place, facts in enumerate(profiles):
        *branches, step = facts['parts'].items()
        for axes, parts in zip(plots[2 * place:], (dict(branches), dict([step])), strict=False):
            bottom = [0] * len(parts)
            for group in GROUPS:
                heights = [1000 * part['groups'].get(group, 0) for part in parts.values()]
                axes.bar([*parts], heights, bottom=bottom, width=0.6, color=_GROUP_COLOURS[group], label=group)
                bottom = [sum(pair) for pair in zip(bottom, heights, strict=True)]
            axes.scatter([*parts], [1000 * part['least'] for part in parts.values()], color=INK, marker='_', s=900,
                         label='the least it could be')
            name_axes(axes, facts['arch'], '', 'forward and backward (ms)')
    figure.legend(*plots[0].get_legend_handles_labels(), loc='outside lower center', ncols=5, fontsize=9,
                  frameon=False)
    return figure
