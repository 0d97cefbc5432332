"""The length of a run for so many images, and schedules that fit it."""
from ..config.check.schedule import schedulers, warm_up_of
from .writing import Change

#: A run of epochs has as many iterations at least, and one of iterations sees the data so often.
_ITERATIONS, _LEAST_PASSES, _MOST_PASSES = 1000, 10, 400
#: Epochs that no data is too small for.
_MOST_EPOCHS = 300
#: The share of the run in which the rate rises.
_WARM_UP = 0.1


def change_schedule(cfg, epoch_length: int, asked: str = '') -> list:
    """Return the changes that give a run a length for its data, and its schedulers that length.

    Args:
        cfg: The config.
        epoch_length: The iterations of an epoch.
        asked: Why the length stays and is written; '' where it may change.
    """
    train = cfg.train_cfg
    unit = 'max_epochs' if 'max_epochs' in train else 'max_iters' if 'max_iters' in train else None
    if unit is None:
        return []
    now = train[unit]
    length = now
    if asked:
        nodes = cfg.get('param_scheduler')
        return [Change(f'train_cfg.{unit}', now, asked), *([Change('param_scheduler', nodes)] if nodes else [])]
    if unit == 'max_epochs' and now * epoch_length < _ITERATIONS:
        length = min(-(-_ITERATIONS // epoch_length), max(_MOST_EPOCHS, now))
        why = f'{_ITERATIONS} iterations, before {now * epoch_length}'
    elif unit == 'max_iters':
        length = min(max(now, _LEAST_PASSES * epoch_length), max(_MOST_PASSES * epoch_length, _ITERATIONS))
        why = f'{length / epoch_length:.3g} passes over the data, before {now / epoch_length:.3g}'
    changes = [Change(f'train_cfg.{unit}', length, why)] if length != now else []
    if changes and train.get('val_interval'):
        interval = max(round(train['val_interval'] * length / now), 1)
        if unit == 'max_epochs':
            interval = max(length // 10, train['val_interval'])
        changes.append(Change('train_cfg.val_interval', interval))
        checkpoint = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
        if checkpoint.get('interval') == train['val_interval'] and checkpoint.get('by_epoch', True) == (
                unit == 'max_epochs'):
            changes.append(Change('default_hooks.checkpoint.interval', interval))
    return changes + _schedulers(cfg, unit, length / now, epoch_length, length)


def _schedulers(cfg, unit, factor, epoch_length, length):
    """Return the change of the list of schedulers, if they are to be stretched or the warm-up is too long."""
    total = length * (epoch_length if unit == 'max_epochs' else 1)
    nodes = [dict(node) for _, node in schedulers(cfg.get('param_scheduler'), 'param_scheduler')]
    if not nodes or not isinstance(cfg.param_scheduler, (list, tuple)):
        return []
    found, why = warm_up_of(cfg, epoch_length), []
    warm = int(found[0].rpartition('.')[2]) if found else None
    for place, node in enumerate(nodes):
        if place == warm:
            steps = 1 if not node.get('by_epoch', True) else epoch_length
            longest = max(int(_WARM_UP * total) // steps, 1)
            if node['end'] > longest:
                why.append(f'the warm-up is a tenth of the run, before {found[1] / max(found[2], 1):.0%} of it')
                node['end'] = longest
        elif factor != 1:
            why[:0] = ['stretched with the run'] if 'stretched with the run' not in why else []
            for key in ('begin', 'end', 'T_max'):
                if node.get(key):
                    node[key] = max(round(node[key] * factor), 1)
            if node.get('milestones'):
                node['milestones'] = [round(step * factor) for step in node['milestones']]
    return [Change('param_scheduler', nodes, '; '.join(why))] if why else []
