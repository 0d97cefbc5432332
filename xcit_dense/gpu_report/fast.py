"""How fast XCiT is beside other backbones, and what memory it takes."""
from dataclasses import replace
from functools import partial

from ..archs import get_arch
from ..benchmark.cells import measure_cell
from ..config.options import check_compiler
from ..errors import ConfigError
from ..text import counted
from .checks import Check, Outcome
from .fast_training import measure_largest, measure_mask_rcnn, measure_upernet
from .measuring import DTYPE, describe, in_time, rates

#: How many times as fast as the released form a step must be by patch size, as counts of launches and bytes call
#: possible, and when both are compiled; and the share of its memory that a training step may take.
EAGER, COMPILED, MEMORY = {8: 1.5, 16: 1.2}, 1.0, {8: 0.50, 16: 0.65}
#: Sizes and images in a batch, those of detection and segmentation first.
_IMAGES = ((800, 1280), 2), ((512, 512), 16), ((512, 512), 2), ((768, 768), 8)
#: Swin-T must be slower than this arch in training at this size.
_BESIDE_SWIN = 'small_12_p16', [800, 1280], 'training'


def compare(setting, archs, rivals=(), compiled=False, images=_IMAGES) -> Outcome:
    """Measure training and inference of our models, the released form, and others.

    Args:
        setting: The `Setting`.
        archs: Names of architectures.
        rivals: Other models, measured beside those with patch 16.
        compiled: Whether to measure every model under `torch.compile` too.
        images: Pairs of a size and the images in a batch.
    """
    if compiled:
        try:
            check_compiler()
        except ConfigError as error:
            return Outcome(None, f'not possible here: {error}')
    images = setting.choose(images, (((64, 96), 2), ))
    if setting.tiny:
        archs = ('nano_12_p16', )
        if compiled:  # a compiler takes minutes for twelve blocks on a CPU
            archs, rivals = (dict(embed_dims=32, depth=4, num_heads=4), ), ()
    options = dict(dtype=DTYPE, compiled=compiled, rates=rates(), runs=setting.choose(8, 1),
                   warmup=setting.choose(3, 0))
    jobs = []
    for image, batch in images:
        for arch in archs:
            beside = [name for name in rivals if name == 'timm' or get_arch(arch).patch_size == 16]
            for mode in ('training', 'inference'):
                label = f'{arch} {image[0]}x{image[1]} batch {batch} {mode}'
                jobs.append((label, partial(measure_cell, arch, image, batch=batch, mode=mode,
                                            names=['ours', 'plain', *beside], **options)))
    found = in_time(setting, jobs, partial(outcome_of, judged=not setting.tiny))
    return replace(found, text=f'{found.text}; {describe(rates())}')


def outcome_of(cells, missing=(), judged=True) -> Outcome:
    """Return the outcome of cells of the benchmark.

    Args:
        cells: As `measure_cell` returns them.
        missing: Sentences about what was not measured.
        judged: Whether the goals are for these models and sizes.
    """
    rows, missed, count = [], [], 0
    for cell in cells:
        found = {row['name']: row for row in cell['rows']}
        for name, row in found.items():
            goals = _goals(cell, found, name) if judged else []
            count += len(goals)
            wrong = [words for words, reached in goals if not reached]
            missed += [f'{_label(cell)} {name}: {words}' for words in wrong]
            rows.append(_row(cell, row, goals and (f'missed: {"; ".join(wrong)}' if wrong else 'reached')))
    words = [counted(len(cells), 'cells')]
    if judged:
        words.append(f'{count - len(missed)} of {count} goals reached')
    text = '; '.join([*words, *(f'missed: {what}' for what in missed), *missing])
    failed = missed or any('failed' in sentence for sentence in missing)
    return Outcome(False if failed else None if missing or not judged else True, text, rows, dict(cells=cells))


def _label(cell):
    return f'{cell["arch"]} {"x".join(map(str, cell["image"]))} batch {cell["batch"]} {cell["mode"]}'


def _goals(cell, found, name):
    """Return pairs of words and whether a goal is reached, for a row of ours."""
    row, form = found[name], ', compiled' if name.endswith(', compiled') else ''
    if name.removesuffix(form) != 'ours':
        return []
    if 'seconds' not in row:
        return [(row['failed'], False)]
    patch_size = get_arch(cell['arch']).patch_size
    goals, wanted = [], COMPILED if form else EAGER[patch_size]
    rivals = [('plain', wanted)]
    if (cell['arch'], cell['image'], cell['mode']) == _BESIDE_SWIN:
        rivals.append(('swin_t', 1))
    for rival, least in rivals:
        seconds = found.get(rival + form, {}).get('seconds')
        if seconds:
            times = seconds / row['seconds']
            goals.append((f'{times:.2f} times as fast as {rival + form}, not {least:g}', times >= least))
    if cell['mode'] == 'training' and not form and 'peak_share' in row:
        share, most = row['peak_share'], MEMORY[patch_size]
        goals.append((f'{share:.2f} of the peak memory of plain, not {most:g}', share <= most))
    return goals


def _row(cell, row, goals):
    def number(name, form, unit=1):
        return form.format(row[name] / unit) if name in row else ''

    return {
        'arch': cell['arch'], 'image': 'x'.join(map(str, cell['image'])), 'batch': cell['batch'], 'mode': cell['mode'],
        'model': row['name'],
        'images/s': f'{cell["batch"] / row["seconds"]:.1f}' if 'seconds' in row else row['failed'],
        'times plain': number('times_as_fast', '{:.2f}'),
        'ms': number('seconds', '{:.1f}', 1e-3), 'of which host': number('host_seconds', '{:.1f}', 1e-3),
        'launches': number('launches', '{}'),
        'saved, GiB': number('saved_bytes', '{:.2f}', 2**30), 'of saved': number('saved_share', '{:.2f}'),
        'peak, GiB': number('peak_bytes', '{:.2f}', 2**30), 'of peak': number('peak_share', '{:.2f}'),
        'of matrix rate': number('share_of_matrix_rate', '{:.0%}'),
        'of copy rate': number('share_of_copy_rate', '{:.0%}'),
        'error': number('error', '{:.1e}'), 'goals': goals or ''}


_OTHERS = 'timm', 'swin_t', 'resnet50', 'convnext_t'
_SMALL, _MEDIUM = ('small_12_p16', 'small_12_p8'), ('medium_24_p16', 'medium_24_p8')
#: The checks in the order in which they run.
CHECKS = (
    Check('small', 'Small 12, beside its released form, timm\'s, Swin-T, ResNet-50 and ConvNeXt-T',
          partial(compare, archs=_SMALL, rivals=_OTHERS), 2.5),
    Check('mask_rcnn', 'Mask R-CNN training at 800x1280', measure_mask_rcnn, 2),
    Check('upernet', 'UperNet training at 512x512', measure_upernet, 1.5),
    Check('medium', 'Medium 24, beside its released form and timm\'s',
          partial(compare, archs=_MEDIUM, rivals=('timm', )), 3),
    Check('largest_batch', 'The largest batch of a training step at 800x1280', measure_largest, 3),
)
#: Those of a stage of their own: they spend their time compiling.
COMPILED_CHECKS = (
    Check('small_compiled', 'Small 12 under torch.compile, beside its released form',
          partial(compare, archs=_SMALL, compiled=True, images=_IMAGES[:1]), 4),
    Check('others_compiled', 'Small 12, patch 16, and the others under torch.compile at 800x1280',
          partial(compare, archs=_SMALL[:1], rivals=_OTHERS, compiled=True, images=_IMAGES[:1]), 4),
    Check('small_compiled_512', 'Small 12 under torch.compile at 512x512 and 768x768',
          partial(compare, archs=_SMALL, compiled=True, images=_IMAGES[1:]), 6),
    Check('medium_compiled', 'Medium 24 under torch.compile at 800x1280',
          partial(compare, archs=_MEDIUM, compiled=True, images=_IMAGES[:1]), 6),
)
