"""The curves of a run: every number at its iteration, however often the run was stopped."""
import json

import cv2
import pytest

from helpers.tools import run_tool
from xcit_dense.errors import DataError
from xcit_dense.report.curves import figure_of, plot_curves, read_curves

AP = {'coco/bbox_mAP': 0.1, 'step': 2}


def write_logs(work_dir, *runs):
    """Write the lines of several starts of one training; text is written as it is."""
    for i, lines in enumerate(runs):
        file = work_dir / f'20250101_00000{i}/vis_data/scalars.json'
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('\n'.join(line if isinstance(line, str) else json.dumps(line) for line in lines))


def losses(*iterations, value=1., **fields):
    return [dict(loss=value, iter=i, step=i, **fields) for i in iterations]


@pytest.mark.parametrize('runs, wanted', (
    # by iterations, killed after 5 with a checkpoint after 4, where the evaluation was due: the later run counts
    (([*losses(1, 2), dict(mIoU=10., step=0), *losses(3, 4), dict(mIoU=11., step=0), *losses(5), '{"loss": 1'],
      [dict(mIoU=12., step=0), *losses(5, 6, value=2.), dict(mIoU=13., step=0)]),
     {'val/mIoU': [(2, 10.), (4, 12.), (6, 13.)], 'loss': [(1, 1.), (2, 1.), (3, 1.), (4, 1.), (5, 2.), (6, 2.)]}),
    # log_metric_by_epoch=False: an evaluation with its iteration, between those that are logged, stands there
    (([dict(mIoU=10., step=20), *losses(50), dict(mIoU=11., step=60), dict(mIoU=12., step=80)],
      [dict(mIoU=13., step=80), *losses(100)]), {'val/mIoU': [(20, 10.), (60, 11.), (80, 13.)]}),
    # one with its epoch stands at the end of it, also if the resumed run got no further
    (([*losses(1, 2, 3, epoch=1), *losses(4, 5, 6, epoch=2), *losses(7, epoch=3)], [AP]),
     {'coco/bbox_mAP': [(6, 0.1)]}),
    # or if the earlier part is in another work dir
    (([AP], [AP, *losses(7, 8, 9, epoch=3)]), {'coco/bbox_mAP': [(6, 0.1)]})))
def test_every_number_stands_at_its_iteration(runs, wanted, tmp_path):
    write_logs(tmp_path, *runs)
    curves = read_curves(tmp_path)
    assert {name: curves[name] for name in wanted} == wanted


@pytest.mark.parametrize('metrics, unit', (
    (['accuracy/top1', 'accuracy/top5'], 'accuracy (%)'), (['coco/bbox_mAP', 'coco/bbox_mAP_50'], 'AP (%)'),
    (['val/mIoU', 'val/aAcc'], 'IoU, accuracy (%)')))
def test_the_metrics_of_each_task_are_drawn_in_percent(metrics, unit, tmp_path):
    write_logs(tmp_path, [*losses(1, 2, epoch=1), {**dict.fromkeys(metrics, 0.5), 'accuracy/other': 1., 'step': 1}])
    axes = figure_of(tmp_path).axes[1]
    assert axes.get_ylabel() == unit and [line.get_label() for line in axes.lines] == metrics
    assert {*axes.lines[0].get_ydata()} == {50. if 'AP' in unit else 0.5}  # COCO's go from 0 to 1
    assert axes.get_ylim()[0] == 0


def test_the_picture_names_its_axes_and_lines(tmp_path):
    write_logs(tmp_path, [dict(line, loss_of_part=2., lr=1e-4) for line in losses(5, 9)] + [dict(mIoU=10., step=0)])
    left, right, rate = figure_of(tmp_path).axes
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in (left, right, rate)] == [
        ('iteration', 'loss'), ('iteration', 'IoU (%)'), ('iteration', 'learning rate')]
    assert [[text.get_text() for text in axes.get_legend().get_texts()] for axes in (left, right)] == [
        ['loss', 'loss_of_part'], ['val/mIoU']]
    assert left.get_xlim() == rate.get_xlim() == pytest.approx((4.92, 9.08))
    assert left.lines[0].get_linewidth() > left.lines[1].get_linewidth()  # the sum stands out


def test_all_that_a_training_without_labels_logs_is_drawn(tmp_path):
    logged = dict(lr=1e-4, weight_decay=0.04, teacher_momentum=0.996, teacher_temperature=0.04, teacher_entropy=3.,
                  student_entropy=2.)
    write_logs(tmp_path, [{**line, **logged, 'weight_decay': 0.1 * line['step'], 'entropy_bound': 4 + line['step'] / 2}
                          for line in losses(1, 2, 3)])
    figure = figure_of(tmp_path)
    assert figure.get_size_inches() == pytest.approx((3 * 5.4, 2 * 4.4))
    plots = {axes.get_title(loc='left'): axes for axes in figure.axes}
    assert list(plots) == ['training losses', 'entropy of the outputs; dashed: its bounds', 'learning rate',
                           'weight decay', 'teacher momentum', 'teacher temperature']
    entropies = plots['entropy of the outputs; dashed: its bounds']
    assert [float(line.get_ydata()[-1]) for line in entropies.lines] == [3., 2., 0., 5.5]
    assert [text.get_text() for text in entropies.get_legend().get_texts()] == ['teacher_entropy', 'student_entropy']
    assert [line.get_linestyle() for line in entropies.lines] == ['-', '-', '--', '--']
    assert plots['weight decay'].lines[0].get_ydata() == pytest.approx([0.1, 0.2, 0.3])
    assert plots['teacher momentum'].get_ylim()[0] > 0.9 and plots['weight decay'].get_ylim()[0] == 0


def test_losses_on_the_validation_data_have_the_colours_of_the_training(tmp_path):
    write_logs(tmp_path, [dict(line, loss_a=2., loss_b=3.) for line in losses(1, 2)]
               + [{'val/loss': 1., 'val/loss_b': 2., 'mIoU': 10., 'step': 0}])
    axes = figure_of(tmp_path).axes[0]
    assert 'training solid, validation dashed' in axes.get_title(loc='left')
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ['loss', 'loss_a', 'loss_b']  # each once
    lines = {line.get_label(): line for line in axes.lines}
    assert {name: line.get_linestyle() for name, line in lines.items()} == {
        'loss': '-', 'loss_a': '-', 'loss_b': '-', 'val/loss': '--', 'val/loss_b': '--'}
    for name in ('loss', 'loss_b'):
        assert lines[f'val/{name}'].get_color() == lines[name].get_color()
    assert len({lines[name].get_color() for name in ('loss', 'loss_a', 'loss_b')}) == 3


@pytest.mark.parametrize('steps, length, epochs', (
    (range(50, 1001, 50), 100, 10), (range(30, 1001, 30), 100, 10),  # the last of an epoch is logged or not
    (range(85, 1021, 85), 100, 10), ((1, 2), 100, None),  # nothing is known after one epoch
    (range(1, 11), 1, 10)))
def test_epochs_are_a_second_axis(steps, length, epochs, tmp_path):
    write_logs(tmp_path, [dict(loss=1., epoch=(step - 1) // length + 1, step=step) for step in steps])
    axes = figure_of(tmp_path).axes[0]
    assert [child.get_xlabel() for child in axes.child_axes] == (['epoch'] if epochs else [])
    if epochs:
        axes.figure.draw_without_rendering()
        left, right = axes.child_axes[0].get_xlim()
        assert left < 0.3 * epochs and abs(right - epochs) < 0.5 and right == pytest.approx(axes.get_xlim()[1] / length)


def test_a_log_without_losses_has_no_curves(tmp_path):
    write_logs(tmp_path, [dict(mIoU=10., step=3)])
    with pytest.raises(DataError, match='no losses to draw'):
        plot_curves(tmp_path)


def test_the_picture_has_the_name_asked_for_or_what_cannot_be_written_is_named(tmp_path, monkeypatch, call_tool):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('')
    write_logs(tmp_path, losses(1, 2))
    for out in ('curves', tmp_path / 'curves.png'):
        assert str(out) in run_tool('plot_curves.py', tmp_path, '--out', out).stdout
        assert cv2.imread(str(out)).std() > 5
    for out in ('.', 'file/curves.png', 'curves.nothing'):
        code, message = call_tool('plot_curves.py', tmp_path, '--out', out)
        assert code == 1 and message.startswith('error: cannot write ') and len(message.splitlines()) == 1
        assert out.removesuffix('/curves.png') in message


@pytest.mark.parametrize('values, scale', (((9., 1.), 'linear'), ((2., 1.9, 1.8), 'linear'), ((20., 0., 1.), 'log')))
def test_losses_of_any_range_can_be_read(values, scale, tmp_path):
    """A line of one or two points has marks."""
    lines = [dict(line, loss=value) for line, value in zip(losses(*range(1, len(values) + 1)), values, strict=True)]
    write_logs(tmp_path, lines)
    left = figure_of(tmp_path).axes[0]
    assert left.get_yscale() == scale and left.figure.get_figwidth() == pytest.approx(5.4)
    assert (left.lines[0].get_marker() == 'o') == (len(values) < 3)
