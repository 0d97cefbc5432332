"""The check of the data sets of a config."""
import logging
import os
import shlex
from pathlib import Path

from mmengine.logging import print_log

from ...errors import ConfigError, DataError
from ...processes import is_first_process
from ...text import counted
from ..datasets import IMAGE_SUFFIXES, LOADERS, datasets, folder_of, prefixes_of, type_of
from ..files import recall, remember, stamp_of
from .classes import check_classes, check_names, listed_names, wanted_classes
from .coco import PARTS, check_coco
from .files import check_images, loads_masks, turns_images
from .findings import Finding, Report, choose_samples, each_kind_first
from .label_maps import check_label_maps

_SHOWN = 10
#: What does not change what is found in a data set; of the pipeline two things do.
_NOT_CHECKED = ('pipeline', 'filter_cfg')
#: An image file with one of these is not opened again, to be drawn.
_CLOSED = ('image-missing', 'image-outside', 'image-unreadable', 'image-huge')


def check_data_set(dataset, from_data: bool = False, use_cache: bool = True) -> Report:
    """Check one data set: its annotation file, its images, its label maps and the names of its classes.

    Args:
        dataset: The config of a data set that holds no other, as `xcit_dense.data.datasets.datasets` gives it: of COCO,
            or of images and label maps.
        from_data: Whether its classes come from the data, as with ``classes_from_data``.
        use_cache: Whether to believe what was found in files that have the same size and time.
    """
    reader = _reader(type_of(dataset))
    wanted = wanted_classes(dataset, from_data)
    root = Path(dataset.get('data_root') or '').expanduser().absolute()
    if reader == 'CocoDataset':
        return _check_coco_set(dataset, wanted, root, use_cache)
    if reader not in ('BaseSegDataset', 'ImageFolderDataset'):
        source = dataset.get('ann_file') or dataset.get('data_root') or ''
        return Report(source, [Finding('not-checked', str(source), value=repr(dataset['type']))])
    own = getattr(type_of(dataset), 'METAINFO', {}).get('classes')
    if own:  # those that the config does not use are ignored, and the order may be another
        findings = [f for f in check_names(dataset['type'], wanted, own) if f.kind == 'class-missing']
        names = own
    else:
        listed, findings = listed_names(root / 'classes.txt')
        names = wanted or listed
        findings += check_names(root / 'classes.txt', wanted, listed) if listed else []
    report = check_label_maps(dataset, names, _roots(root, dataset, 'img_path', 'seg_map_path'), IMAGE_SUFFIXES,
                              reader == 'BaseSegDataset', use_cache)
    report.findings = findings + report.findings
    return report


def _reader(kind):
    """Return the name of the class whose way of reading annotations a data set has, or '' for a way of its own."""
    names = {method: getattr(getattr(kind, method, None), '__qualname__', '').partition('.')[0]
             for method in ('load_data_list', 'parse_data_info')}
    known = names['load_data_list'] != 'CocoDataset' or names['parse_data_info'] == 'CocoDataset'
    return names['load_data_list'] if known else ''


def _check_coco_set(dataset, wanted, root, use_cache):
    path = root / Path(dataset.get('ann_file') or '').expanduser()
    with_mask, tested = loads_masks(dataset), bool(dataset.get('test_mode'))
    kind = 'coco boxes' if not with_mask else 'coco masks, tested' if tested else 'coco masks'
    stamp = stamp_of(path) if path.is_file() else None
    known = recall(kind, path) if use_cache else None
    if stamp and known and known['stamp'] == stamp:
        found = known['found']
    else:
        found = check_coco(path, with_mask, tested)
        if stamp and use_cache:
            remember(kind, path, dict(stamp=stamp, found=found))
    findings = [Finding(*finding) for finding in found['findings']]
    names = [name for _, _, name, *_ in found['categories']]
    if found['categories']:
        findings += check_names(path, wanted, names)
    folder, of_files = folder_of(dataset, 'img').absolute(), []
    for fault, file, row, id, value in check_images(path, folder, found['images'], _roots(root, dataset, 'img'),
                                                    turns_images(dataset), use_cache):
        of_files.append(Finding(fault, file, 'images', row, id, value))
    return Report(path, findings + of_files, found['counts'],
                  [(name, images, amount) for _, _, name, images, amount in found['categories']],
                  samples=_samples(found, folder, of_files))


def _samples(found, folder, of_files):
    """Return what is to be drawn: first images whose files have findings, then those of `check_coco`."""
    names = {id: name for _, id, name, *_ in found['categories']}
    known = {os.path.join(folder, sample['file']): sample for sample in found['samples']}
    closed = {finding.file for finding in of_files if finding.kind in _CLOSED}
    chosen = choose_samples([(finding.file, finding) for finding in of_files if finding.file not in closed], [])
    samples = []
    for file in [*chosen, *(file for file in known if file not in chosen and file not in closed)]:
        sample = known.get(file, dict(annotations=[], captions=[]))
        samples.append(dict(
            file=file, captions=[*chosen.get(file, []), *sample['captions']],
            annotations=[dict(a, name=names.get(a['category_id'], '?')) for a in sample['annotations']]))
    return samples


def _roots(root, dataset, *keys):
    """Return the folders that files must lie in: the data root, and what the config itself names, which may be a link
    to somewhere else. Without a data root there are only these."""
    folders = [folder_of(dataset, key).absolute() for key in keys if prefixes_of(dataset).get(key)]
    return [*([root] if dataset.get('data_root') else []), *folders] or [root]


def check_data_sets(cfg, loaders=LOADERS, use_cache: bool = True) -> dict:
    """Check the data sets of some loaders, each once.

    Returns:
        A `Report` by the names of the loaders that use the data set, such as ``val_dataloader, test_dataloader``.
    """
    users = {}
    for loader in loaders:
        for dataset in datasets(cfg, [loader]):
            key = repr([sorted((name, value) for name, value in dataset.items() if name not in _NOT_CHECKED),
                        loads_masks(dataset), turns_images(dataset)])
            users.setdefault(key, (dataset, []))[1].append(loader)
    return {', '.join(names): check_data_set(dataset, bool(cfg.get('classes_from_data')), use_cache)
            for dataset, names in users.values()}


def check_before_training(cfg, on_findings: str = 'stop'):
    """Check the data that a training will use; in a run of several processes the first one does.

    Call it before `xcit_dense.data.classes.take_classes`, which stops at the first fault.

    Args:
        cfg: The config, with its launcher.
        on_findings: ``stop`` raises an error if there are errors; ``warn`` only logs them. Warnings are always logged.

    Raises:
        ConfigError: ``on_findings`` is something else.
        DataError: There are errors: the first of them, how many there are, and the command that shows all.
    """
    if on_findings not in ('stop', 'warn'):
        raise ConfigError(f'on_findings must be stop or warn, not {on_findings!r}')
    if not is_first_process(cfg.get('launcher')):
        return
    reports = check_data_sets(cfg, LOADERS[:2])
    errors = [*check_classes(cfg), *(finding for report in reports.values() for finding in report.errors)]
    for report in reports.values():
        if report.warnings or report.errors and on_findings == 'warn':
            shown = Report(report.source, report.findings if on_findings == 'warn' else report.warnings, report.counts)
            print_log(f'the data check found in {shown.summary()}', logger='current', level=logging.WARNING)
    if not errors:
        return
    command = ['python', '-m', 'xcit_dense', 'check_data', cfg.filename or 'CONFIG']
    roots = {dataset.get('data_root') for dataset in datasets(cfg, LOADERS)}
    if len(roots) == 1 and all(roots):
        command += ['--data-root', *roots]
    lines = [f'  {errors[place].sentence}' for place in each_kind_first(errors)[:_SHOWN]]
    if len(errors) > _SHOWN:
        lines.append(f'  and {len(errors) - _SHOWN:,} more')
    text = (f'the data has {counted(len(errors), "faults")} that training would not survive, or would learn:\n'
            + '\n'.join(lines) + f'\nSee all, with the --cfg-options of this run if it has any: {shlex.join(command)}')
    if any(finding.drops and finding.part in PARTS for finding in errors):
        text += '\nIts --drop DIR writes annotations without what can be left out.'
    if any(finding.kind == 'class-missing' for finding in errors):
        text += ('\nFor classes of your own use one of the *_custom configs, or set classes_from_data = True in '
                 'yours.')
    if on_findings == 'stop':
        raise DataError(text)
    print_log(text, logger='current', level=logging.WARNING)
