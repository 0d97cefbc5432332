"""Choose the length of a run for the number of images, and a schedule that fits it."""
from ..config.check.schedule import WARM_UP, schedulers, shortened, warm_up_of
from ..config.length import UNITS, set_length
from ..text import counted

#: The fewest iterations of a run that counts epochs; how often a run that counts iterations sees the data.
_ITERATIONS, _LEAST_PASSES, _MOST_PASSES = 1000, 10, 400
#: The most epochs, however small the data is; and the number of validations of a run that is made longer.
_MOST_EPOCHS, _VALIDATIONS = 300, 10


def fit_schedule(cfg, epoch_length: int) -> dict:
    """Set the length of a run for its data, and fit its schedulers to that length.

    Args:
        cfg: The config, which is changed.
        epoch_length: The iterations of an epoch.

    Returns:
        The reasons, by the keys that were changed.
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
        why = f'the warm-up takes a tenth of the run, before {counted(before[1], "iterations")}'
        whys['param_scheduler'] = '; '.join(filter(None, (whys.get('param_scheduler'), why)))
    return whys


def _space(cfg, length):
    """Make a run of many epochs validate and save less often."""
    now, interval = cfg.train_cfg.get('val_interval'), length // _VALIDATIONS
    if not now or now >= interval:
        return
    cfg.train_cfg.val_interval = interval
    saving = (cfg.get('default_hooks') or {}).get('checkpoint') or {}
    if saving.get('interval') == now and saving.get('by_epoch', True):
        saving['interval'] = interval
