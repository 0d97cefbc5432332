"""The demo trainings: what they are trained on, their options, and whether they learn in mixed precision."""
import json
import shutil
import time
from functools import partial
from pathlib import Path

from .checks import Check, Outcome
from .tools import ToolError, Tools, amp_options

_MINUTES = 3
#: By task: the config, its metric with the bar of ``make demo``, and the lengths of the full and of the tiny form.
DEMOS = dict(
    detector=('maskrcnn_xcit_n12_p16_small', 'coco/bbox_mAP_50', 0.5, ('train_cfg.max_epochs', 6, 1)),
    segmentor=('semfpn_xcit_n12_p16_small', 'mIoU', 60., ('train_cfg.max_iters', 700, 6)))


def demo_data(tools: Tools, name: str = 'demo', size: int = 192, counts=(480, 80)) -> Path:
    """Return the folder of generated data, made on first use; the checks of a report share it.

    Args:
        tools: Of the check.
        name: Of the folder.
        size: Longer side of an image; 64 in tiny runs.
        counts: Numbers of training and validation images; 12 and 2 in tiny runs.

    Raises:
        ToolError: It cannot be made.
    """
    folder = Path(tools.setting.out, 'data', name)
    if not folder.exists():
        part = folder.with_name(f'{name}.part')  # of a run that was killed
        shutil.rmtree(part, ignore_errors=True)
        train, val = tools.setting.choose(counts, (12, 2))
        tools.run(f'data_{name}', 'make_demo_data', part, '--train', train, '--val', val, '--size',
                  tools.setting.choose(size, 64))
        part.rename(folder)
    return folder


def training(setting, task: str, data, work_dir, *, length: int | None = None) -> list:
    """Return the arguments of ``train`` for a demo, without validation.

    Args:
        setting: What the check gets.
        task: Key of `DEMOS`.
        data: The data root.
        work_dir: The work dir.
        length: Epochs of the detector or iterations of the segmentor, if not tiny; by default those of ``make demo``.
    """
    config, _, _, (key, full, tiny) = DEMOS[task]
    small = ('--image-size', 64, '--batch-size', 2, '--workers', 0)
    # deterministic algorithms have no histogram for mIoU on a GPU, and the demos are tested by the tool
    return [config, '--data-root', data, '--work-dir', work_dir, *setting.choose((), small), '--cfg-options',
            f'{key}={setting.choose(length or full, tiny)}', 'train_cfg.val_begin=1000000', 'randomness.seed=0']


def check_demos(setting) -> Outcome:
    """Train both demos in every kind of mixed precision, all at the same time, and test them."""
    tools = Tools(setting, 'demos', _MINUTES)
    data = demo_data(tools)
    jobs = {(task, kind): partial(_train_and_test, tools, task, kind, options, data)
            for task in DEMOS for kind, options in amp_options(setting).items()}
    return judge(setting, tools.together(jobs))


def judge(setting, results: dict) -> Outcome:
    """Return the outcome of the demos.

    Args:
        setting: What the check gets.
        results: By task and precision, the metric (None if nothing was found) and the seconds of training, or the
            `ToolError` of a tool.
    """
    rows, wrong = [], []
    for (task, kind), found in results.items():
        _, metric, bar, _ = DEMOS[task]
        row = dict(demo=task, precision=kind, metric=metric, bar=bar)
        if isinstance(found, ToolError):
            wrong.append(str(found))
        else:
            value, row['seconds of training'] = found
            row['result'] = 'nothing found' if value is None else round(value, 3)
            if not (value or 0) >= setting.choose(bar, 0):
                wrong.append(f'{task} in {kind}: {metric} {value or 0:.3f}, {bar:g} wanted')
        rows.append(row)
    words = setting.choose('all reach their bars', 'all train and can be tested; so short a run has no bar')
    return Outcome(not wrong, '; '.join(wrong) or words, rows)


def _train_and_test(tools, task, kind, options, data):
    """Return the metric, None if nothing was found, and the seconds that the training took."""
    config, metric, _, _ = DEMOS[task]
    work_dir, start = tools.folder / f'{task}_{kind}', time.monotonic()
    tools.run(f'train_{task}_{kind}', 'train', *training(tools.setting, task, data, work_dir), *options)
    seconds = round(time.monotonic() - start)
    size = tools.setting.choose((), ('--image-size', 64))
    tools.run(f'test_{task}_{kind}', 'test', config, work_dir, '--data-root', data, '--work-dir', work_dir / 'test',
              *size)
    log = max((work_dir / 'test').glob('*/*.json'))
    return json.loads(log.read_text()).get(metric), seconds


#: The check of the demos.
CHECK = Check('demos', 'Both demos reach their bars in mixed precision', check_demos, _MINUTES)
