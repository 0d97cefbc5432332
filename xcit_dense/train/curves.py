"""Loss and metric curves of a training run, from the scalars that mmengine writes into its work dir."""
import json
from pathlib import Path

from ..errors import DataError
from ..files import OwnFiles

#: How the names of metrics end that are drawn.
_METRICS = ('mAP', 'mAP_50', 'mIoU', 'aAcc', 'top1', 'top5')


def read_curves(work_dir):
    """Return what a run logged, resumed parts joined: ``{name: [(iteration, value), ...]}``.

    Of iterations that were repeated after a resume the later run counts. Numbers of an evaluation have a name
    with ``/``, such as ``coco/bbox_mAP`` or ``val/time``, and stand at the iteration after which they were
    measured, or where only an epoch or nothing was logged with them, at the last one logged before.

    Raises:
        DataError: There is no log.
    """
    points = {}  # iteration: values
    ends = {}  # epoch: the last of its iterations that was logged
    by_epoch = False
    for file in sorted(Path(work_dir).glob('*/vis_data/scalars.json')):
        lines = _read_lines(file)
        start = next((values for values in lines if 'loss' in values), None)
        if start:
            by_epoch = 'epoch' in start
            points = {i: values for i, values in points.items() if i < start['step']}
        elif not points:  # an evaluation alone, at an iteration that nothing tells
            continue
        # a resumed run may begin with the evaluation that was due when the run before it ended
        iteration = max(points) if points else start['step'] - 1
        for values in lines:
            step = values['step']
            if 'loss' in values:
                position = iteration = ends[values.get('epoch')] = step
            else:
                position = ends.get(step, iteration) if by_epoch else step or iteration
                values = {name if '/' in name else f'val/{name}': v for name, v in values.items() if name != 'step'}
            points.setdefault(position, {}).update(values)
    if not points:
        raise DataError(f'there is no log of a training run in {Path(work_dir).absolute()} '
                        '(TIME/vis_data/scalars.json)')
    curves = {}
    for iteration, values in sorted(points.items()):
        for name, value in values.items():
            curves.setdefault(name, []).append((iteration, value))
    return curves


def plot_curves(work_dir, out_file=None, overwrite: bool = False):
    """Draw losses beside metrics into ``WORK_DIR/curves.png`` and return the path.

    Args:
        work_dir: The work dir of a training run.
        out_file: Another file for the picture.
        overwrite: Whether it may replace a file that this function did not write.

    Raises:
        DataError: There is no log, or the picture cannot be written.
        OutputError: There is such a file.
    """
    from matplotlib.figure import Figure  # slow to import
    curves = read_curves(work_dir)
    losses = [name for name in curves if 'loss' in name]
    metrics = [name for name in curves if name.endswith(_METRICS)]
    figure = Figure(figsize=(11, 4.6), layout='constrained')
    left, right = figure.subplots(1, 2, sharex=True)
    for name in losses:
        left.plot(*zip(*curves[name], strict=True), label=name, linewidth=2 if name == 'loss' else 1,
                  marker='.' if len(curves[name]) < 3 else None)  # a line of one point cannot be seen
    values = [value for name in losses for _, value in curves[name] if value > 0]
    left.set(title='training loss', xlabel='iteration', ylabel='loss',
             yscale='log' if values and max(values) > 10 * min(values) else 'linear')
    for name in metrics:
        right.plot(*zip(*curves[name], strict=True), label=name, marker='o', markersize=4)
    right.set(title='evaluation', xlabel='iteration', ylim=(0, None),
              ylabel='average precision' if any('mAP' in name for name in metrics) else 'percent')
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.get_major_locator().set_params(integer=True)
        if axes.lines:
            axes.legend(fontsize='small', loc='upper center', bbox_to_anchor=(0.5, -0.13), ncols=3)
    out_file = Path(out_file or Path(work_dir, 'curves.png'))
    with OwnFiles(out_file.parent, 'plot_curves', overwrite) as own:
        own.claim(out_file.name)
        try:
            figure.savefig(out_file, dpi=110, format=out_file.suffix[1:] or 'png')  # without it the name may be changed
        except (OSError, ValueError) as error:  # a suffix that is no format of pictures is a ValueError
            raise DataError(f'cannot write {out_file}: {error}') from error
    return out_file


def _read_lines(file):
    """Return the lines of a log as dicts, without the last of a run that was killed while it wrote."""
    lines = []
    for line in file.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
