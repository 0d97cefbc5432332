"""Curves of a training run, from the scalars that mmengine writes into its work dir; and the look of all plots."""
import json
import math
from contextlib import suppress
from functools import partial
from pathlib import Path

from .._utils.files import OwnFiles
from ..errors import DataError

#: Ends of the names of metrics to draw.
_METRICS = ('mAP', 'mAP_50', 'mIoU', 'aAcc', 'top1', 'top5')
#: Before the name of a loss on the validation data.
_VALIDATION = 'val/'
#: Names of what follows a schedule besides the learning rate, and whether its axis begins at 0.
_SCHEDULES = dict(weight_decay=True, teacher_momentum=False, teacher_temperature=True)
#: Colours that people with any kind of colour vision can tell apart (the set of Okabe and Ito, without its yellow,
#: which is faint on white).
COLOURS = '#0072B2', '#D55E00', '#009E73', '#CC79A7', '#56B4E9', '#E69F00', '#7F7F7F'
#: Texts and lines that stand for the whole, and those that stay in the background.
INK, FAINT = '#222222', '#B0B0B0'


def read_curves(work_dir):
    """Return what a run logged, resumed parts joined: ``{name: [(iteration, value), ...]}``.

    If iterations were repeated after a resume, the later run counts. Values of an evaluation have a name with ``/``,
    such as ``coco/bbox_mAP`` or ``val/time``. Their iteration is the one after which they were measured; if the log
    has only an epoch or nothing with them, the last one logged before. `DataError` if there is no log.
    """
    points = {}  # iteration: values
    ends = {}  # epoch: the last of its iterations that was logged
    by_epoch = False
    logs = [_read_lines(file) for file in sorted(Path(work_dir).glob('*/vis_data/scalars.json'))]
    for lines in logs:
        if start := next((values for values in lines if 'loss' in values), None):
            by_epoch = 'epoch' in start
            points = {i: values for i, values in points.items() if i < start['step']}
        elif not points:  # only an evaluation, at an unknown iteration
            continue
        # a resumed run may begin with the evaluation that was due when the previous run ended
        iteration = max(points) if points else start['step'] - 1
        for values in lines:
            step = values['step']
            if 'loss' in values:
                position = iteration = ends[values.get('epoch')] = step
            else:
                position = ends.get(step, iteration) if by_epoch else step or iteration
                values = {name if '/' in name else f'val/{name}': v for name, v in values.items() if name != 'step'}
            points.setdefault(position, {}).update(values)
    if not points and any(logs):
        raise DataError(f'the log of {work_dir} has no losses to draw: the run was shorter than '
                        'default_hooks.logger.interval')
    if not points:
        raise DataError(f'no log of a training run (TIME/vis_data/scalars.json) in {Path(work_dir).absolute()}. Give '
                        'the --work-dir of the run')
    curves = {}
    for iteration, values in sorted(points.items()):
        for name, value in values.items():
            curves.setdefault(name, []).append((iteration, value))
    return curves


def figure_of(work_dir):
    """Return the curves of a training, see `read_curves`, as a figure of matplotlib: losses, metrics, schedules.

    Losses on the validation data (``val/NAME``) are dashed, in the colour of the same loss in training. Of a
    training without labels there are also the entropies of the outputs, with their bounds.
    """
    curves = read_curves(work_dir)
    metrics = [name for name in curves if name.endswith(_METRICS)]
    rate = next((name for name in ('lr', 'base_lr') if name in curves), None)
    parts = [_plot_losses]
    if metrics:
        parts.append(partial(_plot_metrics, metrics=metrics))
    if 'teacher_entropy' in curves:
        parts.append(_plot_entropies)
    parts += [partial(_plot_schedule, name=name) for name in (rate, *_SCHEDULES) if name in curves]
    columns = min(3, len(parts))
    figure, plots = new_figure(-(-len(parts) // columns), columns)
    for axes in plots[len(parts):]:
        axes.remove()
    ends = [points[place][0] for points in curves.values() for place in (0, -1)]
    margin = 0.02 * (max(ends) - min(ends)) or 0.5
    for part, axes in zip(parts, plots, strict=False):
        part(axes, curves)
        axes.set_xlim(min(ends) - margin, max(ends) + margin)
        count_axis(axes.xaxis)
        _add_epochs(axes, curves.get('epoch', ()))
    return figure


def _plot_losses(axes, curves):
    losses = {name: points for name, points in curves.items() if 'loss' in name}
    terms = list(dict.fromkeys(['loss', *(name.removeprefix(_VALIDATION) for name in losses)]))
    styles = {name: line_style(place) for place, name in enumerate(terms[1:])}
    styles['loss'] = dict(color=INK, linewidth=2.5, zorder=1.9)  # the sum stands out, and covers no term that equals it
    for name, points in losses.items():
        _draw(axes, name, points, **{'linewidth': 1.3, **styles[name.removeprefix(_VALIDATION)],
                                     'linestyle': '--' if name.startswith(_VALIDATION) else '-'})
    values = [value for points in losses.values() for _, value in points if value > 0]
    span = max(values) / min(values) if values else 1
    axes.set_yscale('log' if span > 10 else 'linear')
    if span > 10:  # in numbers
        axes.yaxis.set_major_formatter('{x:g}')
        axes.yaxis.set_minor_formatter(lambda value, _: f'{value:g}' if f'{value:e}'[0] in '25' else '')
    both = len({name.startswith(_VALIDATION) for name in losses}) == 2
    name_axes(axes, 'losses: training solid, validation dashed' if both else 'training losses', 'iteration', 'loss')
    shown = {line.get_label().removeprefix(_VALIDATION): line for line in reversed(axes.lines)}
    legend_below(axes, [shown[term] for term in terms])


def _plot_metrics(axes, curves, metrics):
    shares = [name for name in metrics if 'mAP' in name]
    for place, name in enumerate(metrics):
        factor = 100 if name in shares else 1  # COCO's are from 0 to 1, the others in percent
        _draw(axes, name, [(step, factor * value) for step, value in curves[name]],
              **{**line_style(place), 'marker': 'o', 'markevery': None})
    words = dict.fromkeys('AP' if name in shares else 'IoU' if 'IoU' in name else 'accuracy' for name in metrics)
    name_axes(axes, 'evaluation', 'iteration', f'{", ".join(words)} (%)')
    axes.set_ylim(0, None)
    legend_below(axes, columns=2)


def _plot_entropies(axes, curves):
    for place, name in enumerate(('teacher_entropy', 'student_entropy')):
        _draw(axes, name, curves[name], **line_style(place))
    for bound in (0., max(value for _, value in curves['entropy_bound'])):
        axes.axhline(bound, color=FAINT, linestyle='--', zorder=1.5)
    name_axes(axes, 'entropy of the outputs; dashed: its bounds', 'iteration', 'entropy (nats)')
    legend_below(axes, axes.lines[:2])


def _plot_schedule(axes, curves, name):
    title = name.replace('_', ' ') if name in _SCHEDULES else 'learning rate'
    _draw(axes, name, curves[name], color=INK, linewidth=1.6)
    name_axes(axes, title, 'iteration', title)
    if _SCHEDULES.get(name, True):
        axes.set_ylim(0, None)
    axes.yaxis.set_major_formatter('{x:g}')


def _draw(axes, name, points, **style):
    if len(points) < 3:  # a line of one point cannot be seen
        style.update(marker='o', markevery=None, markersize=4)
    axes.plot(*zip(*points, strict=True), label=name, **style)


def _add_epochs(axes, points):
    """Add epochs as a second axis at the top, if the log has their length."""
    least = max((step / epoch for step, epoch in points), default=0)
    most = min(((step - 1) / (epoch - 1) for step, epoch in points if epoch > 1), default=math.inf)
    if not 0 < least <= most < 1.1 * least:  # the last iterations of an epoch may not be logged
        return
    length = math.ceil(least)
    count_axis(second_axis(axes, 'epoch', lambda step: step / length, lambda epoch: epoch * length).xaxis)


def plot_curves(work_dir, out_file=None, overwrite: bool = False):
    """Plot the curves of a training, see `figure_of`, into ``WORK_DIR/curves.png`` or another file; return the path.

    `DataError` if there is no log; `OutputError` if there is a file that this function did not write, without
    ``overwrite``.
    """
    figure = figure_of(work_dir)
    out_file = Path(out_file or Path(work_dir, 'curves.png'))
    with OwnFiles(out_file.parent, 'plot_curves', overwrite) as own:
        own.claim(out_file.name)
        try:  # without a format, the name may be changed
            figure.savefig(out_file, dpi=110, format=out_file.suffix[1:] or 'png')
        except ValueError as error:  # an unknown image format
            raise DataError(f'cannot write {out_file}: {error}') from error
    return out_file


def _read_lines(file):
    """Return the lines of a log as dicts, without the incomplete last one of a run that was killed."""
    lines = []
    for line in file.read_text().splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def new_figure(rows: int = 1, columns: int = 1, size=(5.4, 4.4)):
    """Return a figure of matplotlib and the list of its plots, row by row. ``size`` is that of each, in inches."""
    from matplotlib.figure import Figure  # slow to import
    figure = Figure(figsize=(columns * size[0], rows * size[1]), layout='constrained')
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
    plots = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in plots:
        axes.grid(color=FAINT, alpha=0.4, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[['top', 'right']].set_visible(False)
        axes.spines[['left', 'bottom']].set_color(FAINT)
        axes.tick_params(labelsize=9, color=FAINT, labelcolor=INK, which='both')
    return figure, plots


def name_axes(axes, title, x, y):
    """Write the title of a plot and what its axes show, with units."""
    axes.set_title(title, fontsize=11, color=INK, loc='left', pad=10)
    axes.set_xlabel(x, fontsize=10, color=INK)
    axes.set_ylabel(y, fontsize=10, color=INK)


def second_axis(axes, name, forward, back):
    """Add an axis at the top that counts in another unit; ``forward`` gets its values from those of the lower one."""
    top = axes.secondary_xaxis('top', functions=(forward, back))
    top.set_xlabel(name, fontsize=10, color=INK)
    top.tick_params(labelsize=9, color=FAINT, labelcolor=INK, which='both')
    top.spines['top'].set_color(FAINT)
    return top


def line_style(place: int) -> dict:
    """Return colour and markers of a line by its place; colours that are used again have markers."""
    again, colour = divmod(place, len(COLOURS))
    return dict(color=COLOURS[colour], marker=(None, 'o', '^', 's')[again % 4], markevery=0.1, markersize=4)


def count_axis(axis):
    """Show whole numbers on an axis, with separators of thousands, and no more than fit."""
    from matplotlib.ticker import MaxNLocator
    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(lambda value, _: f'{value:,.0f}')


def legend_below(axes, handles=None, columns: int = 3):
    """Place the legend below a plot, where it covers no line."""
    # a legend takes handles only as an argument that is not None
    axes.legend(handles=axes.lines if handles is None else handles, fontsize=9, labelcolor=INK, frameon=False,
                loc='upper center', bbox_to_anchor=(0.5, -0.14), ncols=columns)
