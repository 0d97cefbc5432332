"""Tables and plots of a benchmark."""
import json
from pathlib import Path

from xcit_dense.report.curves import COLOURS, FAINT, INK, name_axes, new_figure, second_axis

from .growth import curve, exponents

#: Ours stands out; the others have a colour each, in every plot.
MODEL_COLOURS = dict(zip(('authors', 'ours', 'timm', 'swin_t', 'resnet50', 'convnext_t', 'vit'), COLOURS, strict=False))


def markdown(result) -> str:
    """Return the tables of a benchmark from the result that the tool saves."""
    machine = result['machine']
    if result.get('paper'):
        return (f'# On paper\n\ntorch {machine["torch"]}. What an H100 would need for the launches, bytes and products '
                'of a step if nothing else cost time; only ratios mean something.\n\n'
                f'{_paper_table(result["paper"])}\n')
    rates = ', '.join(f'{rates["matrix"] / 1e9:.3g} G {dtype} multiply-adds/s' for dtype, rates in
                      machine['rates'].items())
    copies = [f', copies {r["copy"] / 1e9:.0f} GB/s' for r in machine['rates'].values() if 'copy' in r][:1]
    parts = [f'# Benchmark\n\n{machine["device"]}; torch {machine["torch"]}; {rates}{"".join(copies)}.\n\n'
             'Seconds per batch: median (fastest to slowest). Share: multiply-adds per second of this form of the '
             'model, relative to the fastest matrix product. Error: of the maps, and in training also of the gradient, '
             'relative to the authors\' form in float32 (authors).']
    for mode in ('inference', 'training'):
        cells = [cell for cell in result['cells'] if cell['mode'] == mode]
        if cells:
            parts.append(f'## {mode.capitalize()}\n\n{_cell_table(cells)}')
    for (arch, mode, dtype), cells in growths(result).items():
        parts.append(f'## Growth: {arch}, {mode}, {dtype}, batch 1\n\n{_growth_table(cells)}')
    if result['detectors']:
        parts.append(f'## Mask R-CNN training\n\n{_detector_table(result["detectors"])}')
    return '\n\n'.join(parts) + '\n'


def growths(result) -> dict:
    """Return the points of every growth by arch, mode and dtype."""
    found = {}
    for cell in result['growth']:
        found.setdefault((cell['arch'], cell['mode'], cell['dtype']), []).append(cell)
    return found


def save(result, folder):
    """Write ``benchmark.json`` and ``benchmark.md``."""
    Path(folder, 'benchmark.json').write_text(json.dumps(result, indent=1))
    Path(folder, 'benchmark.md').write_text(markdown(result))


def plot(result, folder):
    """Plot every growth as a PNG file and return the paths."""
    return [plot_growth(cells, Path(folder, growth_plot(*key))) for key, cells in growths(result).items()]


def growth_plot(arch, mode, dtype) -> str:
    """Return the file name of a plot."""
    return f'growth_{arch}_{mode}_{dtype}.png'


def _cell_table(cells):
    rows = []
    for cell in cells:
        for row in cell['rows']:
            errors = [f'{row[name]:.1e}' for name in ('error', 'gradient_error') if name in row]
            rows.append((
                cell['arch'], 'x'.join(map(str, cell['image'])), cell['batch'], cell['dtype'], row['name'],
                _seconds(row), _number(row, 'times_as_fast', '{:.2f}'), _number(row, 'times_ours', '{:.2f}'),
                _number(row, 'multiply_adds', '{:.3g}', 1e9),
                _number(row, 'share_of_matrix_rate', '{:.0%}'), _number(row, 'share_of_copy_rate', '{:.0%}'),
                _number(row, 'saved_bytes', '{:.3g}', 2**30), _number(row, 'saved_share', '{:.2f}'),
                _number(row, 'peak_bytes', '{:.3g}', 2**30), _number(row, 'file_bytes', '{:.3g}', 2**20),
                ' / '.join(errors)))
    return markdown_table(('arch', 'image', 'batch', 'dtype', 'model', 'seconds', 'times as fast', 'times ours',
                   'multiply-adds, G', 'share', 'share of copy rate', 'saved, GiB', 'share of saved', 'peak, GiB',
                   'file, MiB', 'error'), rows)


def _paper_table(cells):
    rows = [(cell['arch'], 'x'.join(map(str, cell['image'])), cell['batch'], cell['dtype'], cell['mode'], row['name'],
             f'{1e3 * row["paper_seconds"]:.1f}', f'{1 / row["times_ours"]:.2f}', row['launches'], row['waits'],
             f'{row["moved_bytes"] / 2**30:.1f}', f'{row["flops"] / 1e9:.0f}', f'{row["peak_bytes"] / 2**30:.2f}')
            for cell in cells for row in cell['rows']]
    return markdown_table(('arch', 'image', 'batch', 'dtype', 'mode', 'model', 'ms on paper', 'of ours', 'launches',
                           'waits', 'GiB moved', 'GFLOP', 'peak, GiB'), rows)


def _growth_table(cells):
    rows = []
    for cell in cells:
        for row in cell['rows']:
            rows.append((f'{cell["tokens"]:,}', 'x'.join(map(str, cell['image'])), row['name'], _seconds(row),
                         _number(row, 'times_as_fast', '{:.2f}'), _number(row, 'peak_bytes', '{:.3g}', 2**30)))
    fitted = [(name, f'{e["seconds"]:.2f}', f'{e["peak_bytes"]:.2f}') for name, e in exponents(cells).items()]
    return (markdown_table(('tokens', 'image', 'model', 'seconds', 'times as fast', 'peak, GiB'), rows) + '\n\n'
            + markdown_table(('model', 'exponent of time', 'exponent of memory'), fitted))


def _detector_table(rows):
    return markdown_table(('backbone', 'image', 'batch', 'dtype', 'seconds', 'images/s', 'peak, GiB', 'largest batch'),
                  [(row['name'], 'x'.join(map(str, row['image'])), row['batch'], row['dtype'], _seconds(row),
                    f'{row["images_per_second"]:.3g}', _number(row, 'peak_bytes', '{:.1f}', 2**30),
                    row.get('largest_batch', '')) for row in rows])


def _seconds(row):
    if 'seconds' not in row:
        return row['failed']
    return '{seconds:.3g} ({fastest:.3g} to {slowest:.3g})'.format(**row)


def _number(row, name, form, unit=1):
    return form.format(row[name] / unit) if row.get(name) is not None else ''


def markdown_table(header, rows):
    """Return a Markdown table that is also readable as plain text; empty columns are omitted."""
    lines = [[str(cell) for cell in line] for line in (header, *rows)]
    columns = [column for column in zip(*lines, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines = ['| ' + ' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + ' |'
             for line in zip(*columns, strict=True)]
    lines.insert(1, '|' + '|'.join('-' * (width + 2) for width in widths) + '|')
    return '\n'.join(lines)


def plot_growth(cells, file):
    """Plot time and peak memory over tokens side by side, on logarithmic axes, with fitted exponents in the legend.

    Args:
        cells: The points of one growth.
        file: The PNG file.
    """
    first, fitted = cells[0], exponents(cells)
    patch_size = round((first['image'][0] * first['image'][1] / first['tokens'])**0.5)
    figure, plots = new_figure(1, 2, size=(5.5, 5))
    figure.suptitle(f'{first["arch"]}, {first["mode"]}, {first["dtype"]}, batch 1', fontsize=12, color=INK)
    for axes, value, unit, title, label in zip(plots, ('seconds', 'peak_bytes'), (1, 2**30), ('time', 'memory'), (
            'time of a step (s)', 'peak memory of a step (GiB)'), strict=True):
        for name, exponent in fitted.items():
            tokens, values = curve(cells, name, value)
            axes.plot(tokens, [v / unit for v in values], marker='o', markersize=4,
                      color=MODEL_COLOURS.get(name, FAINT), linewidth=2.2 if name == 'ours' else 1.3,
                      label=f'{name}: tokens^{exponent[value]:.2f}')
        name_axes(axes, title, f'tokens of {patch_size} x {patch_size} pixels', label)
        axes.set(xscale='log', yscale='log')
        _draw_slopes(axes, *curve(cells, cells[0]['rows'][0]['name'], value), unit)
        top = second_axis(axes, 'side of a square image (pixels)', lambda n: patch_size * abs(n)**0.5,
                          lambda side: (side / patch_size)**2)
        for axis in (axes.xaxis, axes.yaxis, top.xaxis):
            axis.set_major_formatter(_tick)
            axis.set_minor_formatter(lambda value, _: _tick(value, _) if f'{value:e}'[0] in '25' else '')
        axes.legend(fontsize=9, labelcolor=INK, frameon=False)
    figure.savefig(file, dpi=110)
    return file


def _draw_slopes(axes, tokens, values, unit):
    """Draw what a cost that grows with the tokens, and with their square, would be from the first point on."""
    if not values:
        return
    limits = axes.get_ylim()  # of what was measured
    for power, words in ((1, 'linear'), (2, 'quadratic')):
        axes.plot(tokens, [values[0] / unit * (n / tokens[0])**power for n in tokens], color=FAINT, linewidth=1,
                  linestyle='--' if power == 1 else ':', label=words, zorder=0)
    axes.set_ylim(limits)


def _tick(value, _):
    return f'{value / 1000:g}k' if value >= 10_000 else f'{value:g}'
