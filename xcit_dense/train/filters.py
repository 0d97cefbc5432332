"""What the log and the console of a run leave out of all that mmengine tells."""
import logging


def is_news(record) -> bool:
    """Whether a record goes into the log: not one line per parameter, no deprecations of mmengine's own hooks."""
    noise = ('paramwise_options -- ', '"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
    return not record.getMessage().startswith(noise)


def is_for_console(record) -> bool:
    """Whether a record goes to the console: no versions of compilers, no config and no table of hooks, all long."""
    kept = ('\n' + '-' * 60 + '\nSystem environment', 'Config:\n', 'Hooks will be executed', 'Exp name: ',
            'Distributed training is not used, all SyncBatchNorm')
    return record.levelno > logging.INFO or not record.getMessage().startswith(kept)
