"""The demo trainings: the data that they are trained on, and their options."""
import shutil
from pathlib import Path

from gpu.tools import Tools

#: By task: the config, its metric with the bar of ``make demo``, and the lengths of the full and of the tiny form.
DEMOS = dict(
    detector=('maskrcnn_xcit_n12_p16_small', 'coco/bbox_mAP_50', 0.5, ('train_cfg.max_epochs', 6, 1)),
    segmentor=('semfpn_xcit_n12_p16_small', 'mIoU', 60., ('train_cfg.max_iters', 700, 6)))


def demo_data(tools: Tools, name: str = 'demo', size: int = 192, counts=(480, 80)) -> Path:
    """Return the folder of generated data, made on first use; all checks share it.

    Args:
        tools: Of the check.
        name: Of the folder.
        size: Longer side of an image; 64 in tiny runs.
        counts: Numbers of training and validation images; 12 and 2 in tiny runs.

    Raises:
        ToolError: It cannot be made.
    """
    folder = Path(tools.check.out, 'data', name)
    if not folder.exists():
        part = folder.with_name(f'{name}.part')  # of a run that was killed
        shutil.rmtree(part, ignore_errors=True)
        train, val = tools.check.choose(counts, (12, 2))
        tools.run(f'data_{name}', 'make_demo_data', part, '--train', train, '--val', val, '--size',
                  tools.check.choose(size, 64))
        part.rename(folder)
    return folder


def training(check, task: str, data, work_dir, *, length: int | None = None) -> list:
    """Return the arguments of ``train`` for a demo, without validation.

    Args:
        check: Of the fixture.
        task: Key of `DEMOS`.
        data: The data root.
        work_dir: The work dir.
        length: Epochs of the detector or iterations of the segmentor, if not tiny; by default those of ``make demo``.
    """
    config, _, _, (key, full, tiny) = DEMOS[task]
    small = ('--image-size', 64, '--batch-size', 2, '--workers', 0)
    # deterministic algorithms have no histogram for mIoU on a GPU, and the demos are tested by the tool
    return [config, '--data-root', data, '--work-dir', work_dir, *check.choose((), small), '--cfg-options',
            f'{key}={check.choose(length or full, tiny)}', 'train_cfg.val_begin=1000000', 'randomness.seed=0']
