"""The plots of the report."""
from pathlib import Path

from ..archs import arch_names
from ..benchmark.report import MODEL_COLOURS
from ..draw.plots import COLOURS, FAINT, INK, name_axes, new_figure
from .operators import GROUPS, OTHER

_COMPILED = ', compiled'
_GROUP_COLOURS = dict(zip(GROUPS, COLOURS, strict=False)) | {OTHER: FAINT}


def plot_all(results: dict, out) -> list[Path]:
    """Write every plot that the results have figures for, and return the files.

    Args:
        results: As `xcit_dense.gpu_report.stages.read` returns them.
        out: The folder.
    """
    return [Path(out, name) for name, plot in PLOTS.items() if plot(results, Path(out, name))]


def plot_throughput(results, file) -> bool:
    """Plot the images a second of every model, a plot for each size and mode."""
    return _plot_cells(_cells_of(results), lambda cell, row: 'seconds' in row and cell['batch'] / row['seconds'],
                       'images a second', file)


def plot_memory(results, file) -> bool:
    """Plot the memory of a training step of every model: its peak, or what it saves where no peak was measured."""
    cells = [cell for cell in _cells_of(results) if cell['mode'] == 'training']
    peak = any('peak_bytes' in row for cell in cells for row in cell['rows'].values())
    return _plot_cells(cells, lambda _, row: row.get('peak_bytes' if peak else 'saved_bytes', 0) / 2**30,
                       f'{"peak memory" if peak else "memory kept for the backward pass"} (GiB)', file)


def _cells_of(results):
    """Return the cells of all checks, with rows by model; a check that measured a cell again only adds to it."""
    cells = {}
    for result in (*results.get('fast', {}).values(), *results.get('compiled', {}).values()):
        for cell in result['facts'].get('cells', ()):
            rows = {row['name']: row for row in cell['rows']}
            known = cells.setdefault((cell['arch'], *cell['image'], cell['batch'], cell['mode']), dict(cell, rows=rows))
            known['rows'] = rows | known['rows']
    return list(cells.values())


def _plot_cells(cells, value_of, label, file):
    cells = [(cell, values) for cell in cells if (values := {
        name: value for name, row in cell['rows'].items() if (value := value_of(cell, row))})]
    if not cells:
        return False
    panels = {}
    for cell, values in cells:
        key = f'{cell["mode"]}, {"x".join(map(str, cell["image"]))}, batch {cell["batch"]}, {cell["dtype"]}'
        name = cell['arch'] if cell['arch'] in arch_names() else 'a tiny one'
        panels.setdefault(key, []).append((name, values))
    shown = list(dict.fromkeys(name for _, values in cells for name in values))
    shown.sort(key=lambda name: [*MODEL_COLOURS].index(name.removesuffix(_COMPILED)))  # compiled beside eager
    columns = min(len(panels), 2)
    figure, plots = new_figure(-(-len(panels) // columns), columns, size=(7, 3.6))
    for axes, (title, groups) in zip(plots, panels.items(), strict=False):
        places, at = [], 0.
        for _, values in groups:
            present = [name for name in shown if name in values]
            places.append(at + (len(present) - 1) / 2)
            for name in present:
                axes.bar(at, values[name], width=0.85, color=MODEL_COLOURS[name.removesuffix(_COMPILED)],
                         hatch='///' if name.endswith(_COMPILED) else None, edgecolor='white', linewidth=0)
                axes.annotate(f'{values[name]:.3g}', (at, values[name]), ha='center', va='bottom', fontsize=7,
                              color=INK)
                at += 1
            at += 1
        name_axes(axes, title, '', label)
        axes.set_xticks(places, [arch for arch, _ in groups])
        axes.grid(visible=False, axis='x')
    for axes in plots[len(panels):]:
        axes.remove()
    from matplotlib.patches import Patch  # slow to import
    handles = [Patch(facecolor=MODEL_COLOURS[name.removesuffix(_COMPILED)], label=name, edgecolor='white', linewidth=0,
                     hatch='///' if name.endswith(_COMPILED) else None) for name in shown]
    figure.legend(handles=handles, loc='outside lower center', ncols=min(len(handles), 6), fontsize=9, frameon=False,
                  labelcolor=INK)
    figure.savefig(file, dpi=110)
    return True


def plot_time(results, file) -> bool:
    """Plot the time of each branch of a block, and of a training step, by group, with the least that it could be."""
    profiles = [result['facts'] for result in results.get('kernels', {}).values() if result['facts'].get('parts')]
    if not profiles:
        return False
    figure, plots = new_figure(len(profiles), 2, size=(5.4, 4))
    for row, facts in enumerate(profiles):
        *branches, step = facts['parts'].items()
        for axes, parts, title in ((plots[2 * row], branches, 'branches of a block'), (plots[2 * row + 1], [step],
                                                                                      'whole training step')):
            _stack(axes, parts)
            name_axes(axes, f'{facts["arch"]}, {title}', '', 'forward and backward (ms)')
    shown = [group for group in GROUPS if any(group in part['groups'] for facts in profiles
                                              for part in facts['parts'].values())]
    from matplotlib.lines import Line2D  # slow to import
    from matplotlib.patches import Patch
    handles = [Patch(color=_GROUP_COLOURS[group], label=group) for group in shown]
    handles.append(Line2D([], [], color=INK, linewidth=2, label='the least it could be'))
    figure.legend(handles=handles, loc='outside lower center', ncols=4, fontsize=9, frameon=False, labelcolor=INK)
    figure.savefig(file, dpi=110)
    return True


def _stack(axes, parts):
    for place, (_, part) in enumerate(parts):
        bottom = 0
        for group in GROUPS:
            height = 1000 * part['groups'].get(group, 0)
            axes.bar(place, height, bottom=bottom, width=0.6, color=_GROUP_COLOURS[group])
            bottom += height
        axes.hlines(1000 * part['least']['seconds'], place - 0.4, place + 0.4, color=INK, linewidth=2)
    axes.set_xticks(range(len(parts)), [name for name, _ in parts])
    axes.set_xlim(-0.7, len(parts) - 0.3)
    axes.grid(visible=False, axis='x')


#: The plots by file name: functions from the results and the file to whether there were figures to plot.
PLOTS = {'gpu_throughput.png': plot_throughput, 'gpu_memory.png': plot_memory, 'gpu_time.png': plot_time}
