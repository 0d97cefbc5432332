"""Whether the config of a test fits the exported file that is tested."""
import logging
from contextlib import suppress

from mmengine.logging import print_log

from ..config.framework import framework_of
from ..data.check.agreement import wanted_classes
from ..data.classes import difference_of
from ..data.datasets import datasets
from ..errors import ConfigError
from ..predict.exported import FRAMEWORKS
from ..text import counted
from .metadata import resize_rule


def check_task(cfg, file, source):
    """Raise `ConfigError` if an exported file has another task than the models of a config."""
    if (framework := framework_of(cfg)) != FRAMEWORKS[file.task]:
        raise ConfigError(f'{source} is for {file.task}, but the config is for {framework}. Use the config of its '
                          f'training{_named(file)}')


def compare_with_config(cfg, file, source, sizes: bool = True):
    """Compare an exported file with the config of its test, in which the classes are already set.

    Different names for the same number of classes, and a different resize rule, are warnings in the log.

    Args:
        cfg: The config.
        file: An exported file from `xcit_dense.predict.exported.open_exported`.
        source: Its path.
        sizes: Whether to warn if the image size differs; False if the user chose it.

    Raises:
        ConfigError: The file has another number of classes.
    """
    for dataset in datasets(cfg, ['test_dataloader']):
        names = wanted_classes(dataset, bool(cfg.get('classes_from_data')))
        if names and len(names) != len(file.classes):
            raise ConfigError(f'{source} has {counted(len(file.classes), "classes")}, but the test data of the config '
                              f'has {len(names):,}. Use the config of its training{_named(file)}')
        if names and (difference := difference_of(names, file.classes)):
            _warn(f'the class names of the test data and of {source} differ, or their order does: {difference}. '
                  'Classes are matched by index, so the metrics are meaningless for an index that is one class in the '
                  'data and another in the model')
    with suppress(ConfigError):  # images that are read in a way that cannot be exported
        own, rule = file.metadata.get('resize'), resize_rule(cfg)
        if sizes and own and own != rule:
            _warn(f'{source} was exported for images resized by {_words(own)}, but this test resizes them by '
                  f'{_words(rule)}, as its config says. Use the config of the export{_named(file)}, or --image-size')


def _named(file):
    return f' ({file.metadata["config"]})' if file.metadata.get('config') else ''


def _words(rule):
    return ' '.join(map(str, [rule['rule'], *rule.get('scale', rule.get('size', ()))]))


def _warn(words):
    print_log(words, logger='current', level=logging.WARNING)
