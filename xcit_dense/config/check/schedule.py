"""Does the schedule of the learning rate fit the length of the run?"""
import logging
import re

from mmengine.logging import print_log

#: The largest share of a run for a warm-up that is shortened.
WARM_UP = 0.1
#: Schedulers that raise the rate, by their names.
_RISING = re.compile('Linear|Constant|Warmup')

def check_schedule(cfg, epoch_length: int = None):
    """Log a warning about schedulers that do not fit the length of the run: they do not change with it.

    Only schedulers that count in the unit of the run, epochs or iterations, are compared. The shape of steps and
    exponentials does not depend on their end, so it may be beyond the run.

    Args:
        cfg: A config without findings of `check_config`.
        epoch_length: The iterations of an epoch, for schedulers that count iterations in a run of epochs.
    """
    unit = 'epochs' if 'max_epochs' in cfg.train_cfg else 'iterations'
    length = cfg.train_cfg.get('max_epochs', cfg.train_cfg.get('max_iters'))
    if length is None:
        return  # a user-defined loop
    lines, ends = [], []
    for path, node in schedulers(cfg.get('param_scheduler'), 'param_scheduler'):
        by_epoch, kind = node.get('by_epoch', True), str(node['type'])
        name, run = f'{path} ({kind})', f'{length} {unit}; {_stretch(path, node, length)}'
        warm_up = _RISING.search(kind)
        if by_epoch != (unit == 'epochs'):
            if by_epoch and not node.get('convert_to_iter_based') and 'Plateau' not in kind:
                lines.append(f'{name} counts epochs, but this run counts iterations: set {path}.by_epoch=False')
            iterations = length * epoch_length if epoch_length and unit == 'epochs' else None
            if iterations and node.get('end', 0) > iterations and not re.search('Step|Exponential', kind):
                lines.append(f'{name} ends at iteration {node["end"]}, beyond the run of {iterations} iterations; '
                             + _stretch(path, node, iterations))
            if not warm_up:
                ends.append((length, None))  # it may continue to the end
            continue
        end = node.get('end') or node.get('T_max') or length
        if late := [m for m in node.get('milestones', []) if m >= length]:
            lines.append(f'{name} has the milestones {late} beyond the run of {run}')
        elif end > length and not re.search('Step|Exponential|Plateau', kind):
            lines.append(f'{name} ends at {end}, beyond the run of {run}')
        ends.append((node.get('end', length), None if late or warm_up else f'{name} ends at {end} of {run}'))
    for place, hook in enumerate(cfg.get('custom_hooks') or ()):
        key = f'custom_hooks.{place}.warmup'
        if str(hook.get('type')) == 'DINOHook' and hook.get('warmup', 0) > length:
            lines.append(f'{key} = {hook["warmup"]} (DINOHook) is beyond the run of {length} {unit}; shorten it with '
                         f'--cfg-options {key}={length // 10}')
    last, early = max(ends, default=(length, None), key=lambda pair: pair[0])
    if last < 0.9 * length and early:
        lines.append(early)
    if lines:
        print_log('the schedule does not fit the run:\n' + '\n'.join(f'  {line}' for line in lines), logger='current',
                  level=logging.WARNING)


def schedulers(node, path):
    """Yield path and dict of each scheduler; there may be one, several, or several for each optimizer."""
    if isinstance(node, dict) and 'type' in node:
        yield path, node
    elif isinstance(node, (dict, list, tuple)):
        for key, part in node.items() if isinstance(node, dict) else enumerate(node):
            yield from schedulers(part, f'{path}.{key}')


def warms_up(node) -> bool:
    """Whether a scheduler raises the rate from the beginning of a run until the scheduler's own end."""
    return bool(_RISING.search(str(node['type']))) and not node.get('begin') and node.get('end') not in (
        None, 0, float('inf'))


def shortened(node, longest: int) -> int:
    """Return the end of a warm-up that may last at most ``longest``, in the unit that it counts.

    In mmengine a warm-up of a single step stays at its first value for ever, so none gets shorter than two steps.
    """
    least = 1 if node.get('convert_to_iter_based') else 2
    return min(node['end'], max(longest, least))


def _stretch(path, node, length):
    """Return the options that stretch a scheduler to the length of a run."""
    steps = node.get('milestones') or []
    factor = length / (node.get('end') or node.get('T_max') or max(steps, default=length) / 0.9 or length)
    values = {key: round(node[key] * factor) for key in ('T_max', 'end') if node.get(key)}
    if steps:
        values['milestones'] = '"[' + ','.join(str(round(step * factor)) for step in steps) + ']"'
    return 'stretch it with --cfg-options ' + ' '.join(f'{path}.{key}={value}' for key, value in values.items())


def warm_up_of(cfg, epoch_length: int = None):
    """Return how long the learning rate of a run warms up.

    Args:
        cfg: The config.
        epoch_length: The iterations of an epoch.

    Returns:
        The scheduler's place in the config, the iteration at which it ends, the iterations of the run, and the
        iterations of one unit that it counts; None if nothing warms up, or one of the numbers is unknown.
    """
    length = cfg.train_cfg.get('max_iters') or (cfg.train_cfg.get('max_epochs') or 0) * (epoch_length or 0)
    for path, node in schedulers(cfg.get('param_scheduler'), 'param_scheduler'):
        unit = (epoch_length or 0) if node.get('by_epoch', True) else 1
        if warms_up(node):
            return (path, node['end'] * unit, length, unit) if unit and length else None
    return None
