"""The plots of the page."""
from pathlib import Path

from benchmarks.report import MODEL_COLOURS
from gpu.operators import GROUPS, OTHER
from xcit_dense.archs import arch_names
from xcit_dense.report.curves import COLOURS, FAINT, INK, name_axes, new_figure

_COMPILED = ', compiled'
_GROUP_COLOURS = dict(zip(GROUPS, COLOURS, strict=False)) | {OTHER: FAINT}


def plot_all(results: dict, out) -> list[Path]:
    """Write every plot that the results have figures for, and return the files.

    Args:
        results: What the checks found, by stage and name.
        out: The folder.
    """
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
    """Return a figure with a bar for every model, a plot for each size and mode; None without any value."""
    panels, shown = {}, set()
    for cell in cells:
        values = {}
        for name in sorted(cell['rows'], key=lambda name: [*MODEL_COLOURS].index(name.removesuffix(_COMPILED))):
            try:
                values[name] = value_of(cell, cell['rows'][name])
            except KeyError:  # it failed, or a CPU has no such memory
                continue
        if values:
            title = f'{cell["mode"]}, {"x".join(map(str, cell["image"]))}, batch {cell["batch"]}, {cell["dtype"]}'
            panels.setdefault(title, {})[cell['arch'] if cell['arch'] in arch_names() else 'a tiny one'] = values
            shown |= values.keys()
    if not panels:
        return None
    columns = min(len(panels), 2)
    figure, plots = new_figure(-(-len(panels) // columns), columns, size=(7, 3.6))
    for axes, (title, groups) in zip(plots, panels.items(), strict=False):
        start, ticks = 0, []
        for values in groups.values():
            ticks.append(start + (len(values) - 1) / 2)
            for at, (name, value) in enumerate(values.items(), start):
                axes.bar(at, value, width=0.85, color=_colour(name), **_look(name))
                axes.annotate(f'{value:.3g}', (at, value), ha='center', va='bottom', fontsize=7, color=INK)
            start += len(values) + 1
        name_axes(axes, title, '', label)
        axes.set_xticks(ticks, groups)
        axes.grid(visible=False, axis='x')
    for axes in plots[len(panels):]:
        axes.remove()
    from matplotlib.patches import Patch  # slow to import
    return _with_legend(figure, [Patch(label=name, facecolor=_colour(name), **_look(name)) for name in sorted(shown)])


def _colour(name):
    return MODEL_COLOURS[name.removesuffix(_COMPILED)]


def _look(name):
    return dict(edgecolor='white', linewidth=0, hatch='///' if name.endswith(_COMPILED) else None)


def _with_legend(figure, handles):
    figure.legend(handles=handles, loc='outside lower center', ncols=min(len(handles), 6), fontsize=9, frameon=False,
                  labelcolor=INK)
    return figure


def _plot_time(profiles):
    """Return a figure with the time of each branch of a block, and of a step, by group, and the least that it takes."""
    if not profiles:
        return None
    figure, plots = new_figure(len(profiles), 2, size=(5.4, 4))
    for row, facts in enumerate(profiles):
        *branches, step = facts['parts'].items()
        for axes, parts, title in ((plots[2 * row], branches, 'branches of a block'),
                                   (plots[2 * row + 1], [step], 'whole training step')):
            for place, (_, part) in enumerate(parts):
                bottom = 0
                for group in GROUPS:
                    height = 1000 * part['groups'].get(group, 0)
                    axes.bar(place, height, bottom=bottom, width=0.6, color=_GROUP_COLOURS[group])
                    bottom += height
                axes.hlines(1000 * part['least'], place - 0.4, place + 0.4, color=INK, linewidth=2)
            axes.set_xticks(range(len(parts)), [name for name, _ in parts])
            axes.set_xlim(-0.7, len(parts) - 0.3)
            axes.grid(visible=False, axis='x')
            name_axes(axes, f'{facts["arch"]}, {title}', '', 'forward and backward (ms)')
    from matplotlib.lines import Line2D  # slow to import
    from matplotlib.patches import Patch
    handles = [Patch(color=_GROUP_COLOURS[group], label=group) for group in GROUPS]
    return _with_legend(figure, [*handles, Line2D([], [], color=INK, linewidth=2, label='the least it could be')])
