"""Loss and metric curves of a training run, from the scalars that mmengine writes into its work dir."""
import json
from pathlib import Path

from ..errors import DataError


def read_curves(work_dir):
    """Return what a run logged, resumed parts joined: ``{name: [(iteration, value), ...]}``.

    Numbers of an evaluation have a name with ``/``, such as ``coco/bbox_mAP`` or ``val/time``, and stand at
    the iteration after which they were measured.

    Raises:
        DataError: There is no log.
    """
    work_dir = Path(work_dir)
    files = sorted(work_dir.glob('*/vis_data/scalars.json'))
    if not files:
        raise DataError(f'there is no log of a training run in {work_dir.absolute()} (TIME/vis_data/scalars.json)')
    points = {}  # iteration: values
    for file in files:
        iteration = None
        for line in file.read_text().splitlines():
            try:
                values = json.loads(line)
            except ValueError:  # the last line of a run that was killed while it wrote
                continue
            if 'loss' in values:
                if iteration is None:  # a later run replaces what an earlier one logged from there on
                    points = {i: v for i, v in points.items() if i < values['step']}
                iteration = values['step']
            else:
                values = {name if '/' in name else f'val/{name}': v for name, v in values.items() if name != 'step'}
            if iteration is not None:
                points.setdefault(iteration, {}).update(values)
    curves = {}
    for iteration, values in sorted(points.items()):
        for name, value in values.items():
            curves.setdefault(name, []).append((iteration, value))
    return curves


def plot_curves(work_dir, out_file=None):
    """Draw losses beside metrics into ``WORK_DIR/curves.png`` and return the path.

    Args:
        work_dir: The work dir of a training run.
        out_file: Another file for the picture.
    """
    from matplotlib.figure import Figure  # slow to import
    curves = read_curves(work_dir)
    losses = [name for name in curves if 'loss' in name]
    metrics = [name for name in curves if name.endswith(('mAP', 'mAP_50', 'mIoU', 'aAcc'))]
    figure = Figure(figsize=(11, 4.6), layout='constrained')
    left, right = figure.subplots(1, 2)
    for name in losses:
        left.plot(*zip(*curves[name], strict=True), label=name, linewidth=2 if name == 'loss' else 1)
    left.set(title='training loss', xlabel='iteration', yscale='log')
    for name in metrics:
        right.plot(*zip(*curves[name], strict=True), label=name, marker='o', markersize=4)
    right.set(title='evaluation', xlabel='iteration', ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize='small', loc='upper center', bbox_to_anchor=(0.5, -0.13), ncols=3)
    out_file = Path(out_file or Path(work_dir, 'curves.png'))
    figure.savefig(out_file, dpi=110)
    return out_file
