"""The length of a run for so many images, and a schedule that fits it."""
from ..config.check.schedule import WARM_UP, schedulers, shortened, warm_up_of
from ..config.length import UNITS, set_length

#: A run of epochs has as many iterations at least, and one of iterations sees the data so often.
_ITERATIONS, _LEAST_PASSES, _MOST_PASSES = 1000, 10, 400
#: Epochs that no data is too small for, and the validations of a run that is made longer.
_MOST_EPOCHS, _VALIDATIONS = 300, 10


def fit_schedule(cfg, epoch_length: int) -> dict:
    """Give a run a length for its data, and its schedulers that length.

    Args:
        cfg: The config, which is changed.
        epoch_length: The iterations of an epoch.

    Returns:
        The reasons, by the keys of what was changed.
    """
    key = next((key for key in UNITS if cfg.train_cfg.get(key)), None)
    if key is None:
        return {}
    now, whys = cfg.train_cfg[key], {}
    if key == 'max_epochs':
        length = min(max(now, -(-_ITERATIONS // epoch_length)), max(_MOST_EPOCHS, now))
        why = f'{length * epoch_length} iterations, before {now * epoch_length}'
    else:
        length = min(max(now, _LEAST_PASSES * epoch_length), max(_MOST_PASSES * epoch_length, _ITERATIONS))
        why = f'{length / epoch_length:.3g} passes over the data, before {now / epoch_length:.3g}'
    before = warm_up_of(cfg, epoch_length)
    if length != now:
        set_length(cfg, length, UNITS[key], epoch_length)
        whys.update({f'train_cfg.{key}': why, 'param_scheduler': 'stretched with the run'})
        if key == 'max_epochs':
            _space(cfg, length)
    after = warm_up_of(cfg, epoch_length)
    if after:
        node = dict(schedulers(cfg.param_scheduler, 'param_scheduler'))[after[0]]
        node['end'] = shortened(node, int(WARM_UP * after[2]) // after[3])
    if before and warm_up_of(cfg, epoch_length)[1] != before[1]:
        why = f'the warm-up of {before[1]} iterations takes a tenth of the run'
        whys['param_scheduler'] = '; '.join(filter(None, (whys.get('param_scheduler'), why)))
    return whys


def _space(cfg, length):
    """Let a run of many epochs validate and save less often than after each."""
    now, interval = cfg.train_cfg.get('val_interval'), length // _VALIDATIONS
    if not now or now >= interval:
        return
    cfg.train_cfg.val_interval = interval
    saving = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    if saving.get('interval') == now and saving.get('by_epoch', True):
        saving['interval'] = interval
