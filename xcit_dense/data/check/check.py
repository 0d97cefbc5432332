"""The check of the data sets of a config, and what stops a training or a test."""
import shlex

from ..._utils.processes import is_first_process
from ..._utils.text import counted, type_name
from ...errors import ConfigError, DataError
from ..class_folders import ClassImages, same_classes
from ..classes import difference_of, known_classes, outputs_of, take_classes
from ..datasets import LOADERS, DataSet, datasets, stop_or_warn
from ..evaluators import evaluators
from ..label_maps import first_label, names_path_of, own_ignored, void_names, without_ignored
from ..pipelines import ignored_labels
from ..unlabelled import UnlabelledSource
from .agreement import check_beside, check_classes, check_names, listed_names, wanted_classes
from .class_images import add_shared, check_class_images, check_labels
from .coco import check_coco_set
from .findings import ERROR, Finding, Report, in_lines
from .images import check_label_maps

_SHOWN = 10
#: Findings that stop a test or make its results meaningless; different class names do neither.
_ENDS = ('not-there', 'no-images', 'class-count', 'class-numbers', 'list-line')


def check_data_set(dataset, from_data: bool = False, use_cache: bool = True, ignored=(),
                   trained: bool = True) -> Report:
    """Check one data set: its annotation file, its images, its label maps and the names of its classes.

    Args:
        dataset: The config of a data set that wraps no other, as `xcit_dense.data.datasets.datasets` returns it: COCO,
            images with label maps, or images by class.
        from_data: Whether its classes come from the data, as with ``classes_from_data``.
        use_cache: Whether to reuse results for files with the same size and time.
        ignored: Labels that heads or metrics ignore, in addition to those that the data set ignores.
        trained: Whether it is trained on: a test needs less of images by class, and more of label maps.
    """
    dataset = DataSet.of(dataset)
    reader = dataset.reader
    wanted = wanted_classes(dataset, from_data)
    source = str(dataset.get('ann_file') or dataset.get('data_root') or '')
    why = 'its files are not on a disk' if dataset.is_elsewhere else ''
    if reader not in ('CocoDataset', 'BaseSegDataset', 'ImageFolderDataset', 'CustomDataset', 'UnlabelledImages'):
        why = (f'{dataset["type"]!r} is of no installed framework, or no known kind of data set: COCO, images with '
               'label maps, or images by class')
    if why:
        return Report(source, [Finding('not-checked', source, value=why)])
    if reader == 'CocoDataset':
        return check_coco_set(dataset, wanted, use_cache)
    if reader in ('CustomDataset', 'UnlabelledImages'):
        source = ClassImages(dataset) if reader == 'CustomDataset' else UnlabelledSource(dataset)
        return check_class_images(source, wanted, trained, use_cache)
    names, findings = _classes_of_maps(dataset, wanted)
    report = check_label_maps(dataset, names, use_cache, ignored, trained)
    report.findings = findings + report.findings
    return report


def _classes_of_maps(dataset, wanted):
    """Return the class of each label, or None if any label will do, and findings on the names."""
    path, first, ignored = names_path_of(dataset), first_label(dataset), own_ignored(dataset)
    listed, findings = listed_names(path)
    if own := dataset.own_classes:  # classes that the config does not use are ignored, and the order may differ
        return own, [f for f in check_names(dataset['type'], wanted, own) if f.kind == 'class-missing'] + [
            f for f in check_names(path, own, listed or own, spelt=True) if f.kind != 'class-unused']
    void = {place + first: name for place, name in void_names(listed or wanted or ()) if place + first not in ignored}
    if void:
        findings.append(Finding('class-void', str(path), value=(
            f'{", ".join(map(repr, void.values()))}. To ignore these pixels: --ignore-label '
            f'{" ".join(map(str, void))}')))
    if not listed:
        return wanted, findings
    listed = without_ignored(listed, first, ignored)
    return wanted or listed, findings + check_names(path, wanted, listed)


def check_data_sets(cfg, loaders=LOADERS, use_cache: bool = True) -> dict:
    """Check each data set of some loaders once, and return a `Report` for each.

    They are by the names of its users, see `datasets`: ``val_dataloader, test_dataloader``, or ``train_dataloader.0``.
    """
    users, parts = {}, set()
    for dataset in datasets(cfg, loaders):
        loader = dataset.name.partition('.')[0]
        if dataset.get('indices') is not None or 'KFoldDataset' in repr(cfg[loader]):
            parts.add(dataset.name)  # of one data set, which is in no other
        options = dict(ignored=ignored_labels(cfg, loader), trained=loader == LOADERS[0])
        key = repr([sorted(dataset.items()), options])
        users.setdefault(key, (dataset, options, []))[-1].append(dataset.name)
    reports = {', '.join(names): check_data_set(dataset, bool(cfg.get('classes_from_data')), use_cache, **options)
               for dataset, options, names in users.values()}
    for names, report in reports.items():
        for key, metric in evaluators(cfg, [name.partition('.')[0] for name in names.split(', ')]):
            if report.judged == 0 and type_name(metric.get('type')) == 'CocoMetric' and not metric.get('format_only'):
                report.findings.append(Finding('nothing-judged', str(report.source), value=key))
    _add_unused([report for names, report in reports.items() if names.startswith(LOADERS[0])])
    add_shared({names: report for names, report in reports.items() if not parts & set(names.split(', '))}, use_cache)
    return reports


def _add_unused(trained):
    """Where no data set of a training has an object that is used, make what each loses an error."""
    for report in trained if all(report.judged == 0 for report in trained) else ():
        lost = [finding for finding in report.findings if finding.kind == 'objects-lost']
        if lost or not report.counts['annotations']:
            words = f'training ignores {lost[0].value}' if lost else 'it has no objects'
            report.findings = [finding for finding in report.findings if finding not in lost]
            report.findings.append(Finding('objects-unused', str(report.source), value=words))


def check_all_classes(cfg, name, findings) -> list:
    """Return findings on the classes of all data sets, and on data sets compared with each other.

    ``name`` is that of the config, and ``findings`` are those of the data sets.
    """
    found, classes = [], check_classes(cfg)
    ends = 'not-', 'no-images', 'map-', 'class-list', 'class-explicit'  # a training would stop before it reads them
    is_over = any(each.severity == ERROR and each.kind.startswith(ends) for each in [*findings, *classes])
    # are they the same in all data sets? A training does not read those of the test
    for kind, loaders in (('class-count', LOADERS[:2]), ('class-test', LOADERS[2:])) if not is_over else ():
        try:
            if datasets(cfg, loaders):
                take_classes(cfg, loaders=loaders)
        except DataError as error:
            found.append(Finding(kind, name, value=f'cannot be used: {error}'))
            break
    return [*found, *classes, *check_beside(cfg)]


def check_before_training(cfg, on_findings: str = 'stop'):
    """Check the data that a training will use, see `check_data_sets`; of several processes only the first one does.

    Call it before `xcit_dense.data.classes.take_classes`, which stops at the first problem. Warnings are logged, with
    ``on_findings='warn'`` errors too; otherwise a `DataError` has the first ones, and the command that shows all.
    """
    if on_findings not in ('stop', 'warn'):
        raise ConfigError(f'on_findings must be stop or warn, not {on_findings!r}')
    if not is_first_process(cfg.get('launcher')):
        return {}
    found = check_data_sets(cfg, LOADERS[:2])
    reports = [*found.values(),
               Report(cfg.filename or 'the config', [*check_classes(cfg), *check_beside(cfg, LOADERS[:2])])]
    errors = [finding for report in reports for finding in report.errors]
    for report in reports:
        shown = Report(report.source, report.findings if on_findings == 'warn' else report.warnings, report.counts)
        if shown.findings:
            stop_or_warn(f'data check of {shown.summary()}', 'warn')
    if errors:
        how = f':\n{_first_of(errors)}\n' if on_findings == 'stop' else '; continuing because of --data-findings warn. '
        stop_or_warn(f'the data has {counted(len(errors), "errors")} that would stop or spoil the training{how}'
                     f'{_advice(cfg, errors)}', on_findings)
    return found


def _first_of(errors):
    return '\n'.join(f'  {line}' for line in in_lines(errors, _SHOWN))


def _advice(cfg, errors):
    """Return the command that shows all errors, and what to do about those of single entries."""
    command = ['python', '-m', 'xcit_dense', 'check_data', cfg.filename or 'CONFIG']
    roots = {dataset.get('data_root') for dataset in datasets(cfg, LOADERS)}
    if len(roots) == 1 and all(roots):
        command += ['--data-root', *roots]
    text = f'To see all (add the --cfg-options of this run, if any): {shlex.join(command)}'
    if any(finding.row is not None for finding in errors):
        text += ('\nMend or delete the entries and files that are wrong: it lists each of them in '
                 'work_dirs/check_data/findings.json')
    return text


def classified_data(cfg, loaders=LOADERS[2:]) -> list:
    """Return the data sets of some loaders, by default the test data, that have images by class and are on a disk."""
    return [dataset for dataset in datasets(cfg, loaders) if dataset.reader == 'CustomDataset'
            and not dataset.is_elsewhere]


def check_before_test(cfg, loaders=LOADERS[2:]):
    """Check what evaluators read, and classes and lists of `classified_data`, but no images; warnings are logged.

    `DataError`: the test would stop, or the data has labels that the model cannot predict.
    """
    beside = check_beside(cfg, loaders)
    if wrong := [found.sentence for found in beside if found.severity == ERROR]:
        raise DataError('\n'.join(wrong))
    for found in beside:
        stop_or_warn(found.sentence, 'warn')
    for dataset in classified_data(cfg, loaders):
        source = ClassImages(dataset)
        wanted = wanted_classes(dataset, bool(cfg.get('classes_from_data')))
        report = Report(source.source, check_labels(dataset, wanted))
        errors = [finding for finding in report.findings if finding.kind in _ENDS] or list(
            _beyond(source, outputs_of(cfg.get('model'))))
        if errors:
            raise DataError(f'the data has {counted(len(errors), "errors")} that would stop or spoil the test:\n'
                            f'{_first_of(errors)}')
        if report.findings:
            stop_or_warn(f'data check of {report.summary()}', 'warn')


def warn_of_other_classes(cfg, checkpoint, source):
    """Log a warning if `classified_data` has different class names than a checkpoint, or a different order.

    Labels are compared as numbers, so nothing else would notice. Names in the config may be for display: either they or
    the names of the folders must match the content of the checkpoint. Without names in it, nothing is compared.
    """
    known = known_classes(checkpoint, source)
    for dataset in classified_data(cfg) if known else ():
        images = ClassImages(dataset)
        own = wanted_classes(dataset, bool(cfg.get('classes_from_data')))
        in_data = images.named if images.list else images.classes()
        sides = [tuple(names) for names in (in_data, own) if names]
        if sides and not any(same_classes(names, known) for names in sides):
            stop_or_warn(f'{images.source} has different classes than {source}, or a different order: '
                         f'{difference_of(sides[0], known)}. Classes are compared by number, so the results are '
                         'meaningless if a number means different classes in the data and in the model. '
                         f'{images.advice}'.rstrip(), 'warn')


def check_learned_alike(cfg):
    """Raise a `DataError` unless a test can predict for the test images what it learns from the training images."""
    first = None
    for dataset in classified_data(cfg, (LOADERS[0], LOADERS[2])):
        source = ClassImages(dataset)
        if not source.is_labelled:
            raise DataError(f'{source.source} has images without labels (with_label=False), but this test needs the '
                            'classes of the training and test images: set with_label=True in their data sets')
        if source.list:  # numbers, which have the same meaning everywhere
            continue
        first = first or source
        if difference := difference_of(source.classes(), first.classes()):
            raise DataError(f'{source.source} has different classes than {first.source}, or a different order: '
                            f'{difference}. Make them the same. {source.advice}'.rstrip())


def _beyond(source, count):
    """Yield findings on labels that a model with ``count`` outputs never predicts."""
    if not count or not source.is_labelled:
        return
    if source.list:
        for line in source.lines:
            if line.label >= count:
                yield Finding('class-count', source.source, 'lines', line.number, line.number, (
                    f'has the label {line.label}; the labels of the model are 0 to {count - 1}'))
    elif (number := len(source.classes())) > count:
        yield Finding('class-count', source.source, value=(
            f'has {counted(number, "class folders")}, but the model {counted(count, "classes")}. Use a config and a '
            'checkpoint of a model for this data'))
