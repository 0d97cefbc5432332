"""A copy of the annotations without the entries that are wrong."""
import json
import os
from collections import Counter
from pathlib import Path

from ..._utils.files import OwnFiles, atomic_write
from ..._utils.text import counted, printable
from ...errors import DataError
from .coco_file import PARTS, read_coco


def drop_findings(report, out, overwrite: bool = False) -> tuple:
    """Write the annotations of a data set without the records that have findings.

    Args:
        report: The report of the data set.
        out: The folder to write into: an annotation file of the same name, or, for images and label maps, a list of
            the images to remove, one path per line. For images by class, a list that a data set reads instead of
            folders, with ``classes.txt``.
        overwrite: Whether to replace a file of that name that this function did not write.

    Returns:
        A sentence on what was written and dropped, and the annotation file or list, or None. If there is nothing to
        drop, nothing is written.

    Raises:
        DataError: The file would be that of the data set itself, or there is no annotation file to start from, or
            no annotation would be left.
        OutputError: The file cannot be written, or exists and was not written by this function.
    """
    source, dropped = Path(report.source), [finding for finding in report.findings if finding.drops]
    is_class_data = report.images is not None
    target = Path(out, f'{source.name}.txt' if source.is_dir() and is_class_data else
                  'take_away.txt' if source.is_dir() else source.name)
    if target.exists() and source.exists() and target.samefile(source):
        raise DataError(f'{target} is the data set itself, which is never changed: choose another folder')
    content, fault = (None, None) if is_class_data or source.is_dir() else read_coco(source)
    if fault:
        raise DataError(f'{source} cannot be cleaned: {fault}')
    if not dropped:
        return printable(f'{source}: nothing to drop'), None
    if source.is_dir() and not is_class_data:
        bad = sorted({finding.row for finding in dropped})
        _write(target, ''.join(f'{path}\n' for path in bad), overwrite)
        return printable(f'{target}: {counted(len(bad), "images")} to remove from {source}, with label maps'), None
    words = (_write_images(report, dropped, target, overwrite) if is_class_data else
             _write_annotations(content, dropped, target, overwrite))
    reasons = ', '.join(f'{kind} {number:,}' for kind, number in Counter(f.kind for f in dropped).most_common())
    return printable(f'{target}: {words} ({reasons})'), target


def _write_annotations(content, dropped, target, overwrite):
    rows = {part: {finding.row for finding in dropped if finding.part == part} for part in PARTS}
    kept = {part: [record for row, record in enumerate(content[part]) if row not in rows[part]] for part in PARTS}
    # the annotations of dropped images go too
    ids = {record['id'] for record in kept['images']}
    before = len(kept['annotations'])
    kept['annotations'] = [record for record in kept['annotations'] if record['image_id'] in ids]
    if content['annotations'] and not kept['annotations']:
        raise DataError(f'no annotation would be left for {target}: nothing is written')
    _write(target, json.dumps({**content, **kept}), overwrite)
    words = [counted(len(rows[part]), part) for part in PARTS if rows[part]]
    if before > len(kept['annotations']):
        words.append(f'{counted(before - len(kept["annotations"]), "annotations")} of dropped images')
    return f'without {", ".join(words)}'


def _write_images(report, dropped, target, overwrite):
    bad = {finding.row for finding in dropped if finding.part == 'files'}
    kept = [(os.path.relpath(path, report.folder), label) for path, label, _ in report.images if path not in bad]
    _write(target, ''.join(f'{name}\n' if label is None else f'{name} {label}\n' for name, label in kept), overwrite,
           *[('classes.txt', ''.join(f'{name}\n' for name, *_ in report.classes))] * bool(report.classes))
    return f'{counted(len(kept), "images")}, without those that are wrong'


def _write(target, text, overwrite, *others):
    files = [(target.name, text), *others]
    with OwnFiles(target.parent, 'check_data', overwrite) as own:
        own.claim(*(name for name, _ in files))
        for name, content in files:
            with atomic_write(target.with_name(name)) as part:
                part.write_text(content)
