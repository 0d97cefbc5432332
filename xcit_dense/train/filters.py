"""Messages of mmengine that the log and the console of a run omit."""
import logging


def is_news(record) -> bool:
    """Whether a record goes into the log: no line for each parameter, no deprecations of mmengine's own hooks."""
    noise = ('paramwise_options -- ', '"FileClient" will be deprecated', '"HardDiskBackend" is the alias')
    text = record.getMessage()
    return not text.startswith(noise) and not text.endswith(' is skipped since its requires_grad=False')


def is_for_console(record) -> bool:
    """Whether a record goes to the console: not the long ones (versions of compilers, the config, the hooks)."""
    kept = ('\n' + '-' * 60 + '\nSystem environment', 'Config:\n', 'Hooks will be executed', 'Exp name: ',
            'Distributed training is not used, all SyncBatchNorm')
    return record.levelno > logging.INFO or not record.getMessage().startswith(kept)
