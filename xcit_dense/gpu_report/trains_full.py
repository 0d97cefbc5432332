"""The full configs: time of an iteration, memory, and the time spent waiting for data, on samples or generated data."""
import json
import math
import statistics
from functools import partial
from pathlib import Path

from .checks import Check, Outcome
from .tools import ToolError, Tools, amp_options
from .trains_demos import demo_data

_MINUTES = 2.5
#: Iterations before the ones that are timed: memory is allocated, and algorithms are chosen.
_WARM_UP = 10
#: By family of configs: the data set, and the options of tiny runs: small images, few objects, the channels of nano.
_FAMILIES = dict(
    maskrcnn=('coco', [
        *(f'train_dataloader.dataset.pipeline.3.transforms.{step}.scales=[(64,64)]' for step in ('0.0', '1.0', '1.2')),
        'train_dataloader.dataset.pipeline.3.transforms.1.1.crop_size=(32,64)',
        'val_dataloader.dataset.pipeline.1.scale=(64,64)', 'model.neck.in_channels=[128,128,128,128]',
        'model.train_cfg.rcnn.sampler.num=16', 'model.train_cfg.rpn_proposal.max_per_img=20',
        'model.test_cfg.rpn.max_per_img=20']),
    upernet=('ade20k', ['model.decode_head.in_channels=[128,128,128,128]', 'model.auxiliary_head.in_channels=128',
                        'model.decode_head.channels=32']),
    semfpn=('ade20k', ['model.neck.in_channels=[128,128,128,128]']))
_TINY_ADE20K = [
    'train_dataloader.dataset.pipeline.2.scale=(256,64)', 'train_dataloader.dataset.pipeline.3.crop_size=(64,64)',
    'val_dataloader.dataset.pipeline.1.scale=(256,64)', 'model.data_preprocessor.size=(64,64)']


def check_config(setting, family: str, patch_size: int) -> Outcome:
    """Train a full config for 100 iterations with ``--amp`` and measure it."""
    data_set, small = _FAMILIES[family]
    config = f'{family}_xcit_s12_p{patch_size}_{data_set}'
    tools = Tools(setting, f'full_{config}', _MINUTES)
    data = Path(setting.data, data_set) if setting.data else _generated(tools, data_set)
    precision, options = next(iter(amp_options(setting).items()))
    iterations, out = setting.choose(100, 2), tools.folder / 'measured.json'
    if setting.tiny:
        small = [f'model.backbone.arch=nano_12_p{patch_size}', *small, *(_TINY_ADE20K if data_set == 'ade20k' else ())]
        options = [*options, '--cfg-options', *small]
    try:
        tools.run('measure', 'measure', config, '--data-root', data, '--iterations', iterations, '--images',
                  setting.choose(4, 1), '--out', out, *options)
    except ToolError as error:
        return Outcome(False, str(error))
    found = json.loads(out.read_text())['training']
    warm_up = min(_WARM_UP, iterations - 1)
    seconds, waiting, losses = (found[name][warm_up:] for name in ('iteration_seconds', 'waiting_seconds', 'losses'))
    facts = dict(config=config, precision=precision, batch=found['batch_size'], seconds=statistics.median(seconds),
                 peak_gib=found['peak_memory_gib'], waiting_share=sum(waiting) / sum(seconds))
    row = {'data': 'samples' if setting.data else 'generated', 'precision': precision, 'batch': facts['batch'],
           'iterations': found['iterations'], 's per iteration': f'{facts["seconds"]:.3g}',
           'images/s': f'{facts["batch"] / facts["seconds"]:.3g}', 'peak, GiB': f'{facts["peak_gib"]:.2f}',
           'waiting for data': f'{facts["waiting_share"]:.0%}',
           'loss': f'{found["losses"][0]:.3f} to {losses[-1]:.3f}'}
    if not all(map(math.isfinite, losses)) or found['iterations'] != iterations:
        return Outcome(False, f'{config}: {found["iterations"]} of {iterations} iterations, last loss {losses[-1]:g}',
                       [row], facts)
    return Outcome(True, f'{config} trains: {facts["seconds"]:.3g} s an iteration of {facts["batch"]} images (median '
                   f'after {warm_up}), {facts["peak_gib"]:.2f} GiB, {facts["waiting_share"]:.0%} of the time waiting '
                   'for data', [row], facts)


def _generated(tools, data_set):
    """Return generated data with the classes of a data set; label maps have its first five already."""
    data = demo_data(tools, 'full', size=640, counts=(60, 8))
    if data_set == 'coco':
        from mmdet.datasets import CocoDataset
        names = CocoDataset.METAINFO['classes']
        for file in (data / 'annotations').glob('instances_*.json'):
            content = json.loads(file.read_text())
            content['categories'] = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
            file.write_text(json.dumps(content))
    return data


#: A check for each config, so that what was measured is kept when the time of the stage is over.
CHECKS = tuple(
    Check(f'full_{family}_p{patch_size}', f'The full config {family}_xcit_s12_p{patch_size}_{data_set}',
          partial(check_config, family=family, patch_size=patch_size), _MINUTES)
    for patch_size in (16, 8) for family, (data_set, _) in _FAMILIES.items())
