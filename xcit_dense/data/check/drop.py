"""A data set without what is wrong in it, written beside the data set."""
import json
from collections import Counter
from pathlib import Path

from ...errors import DataError
from ...files import atomic_write
from ...text import counted, printable
from .coco_file import PARTS, read_coco


def drop_findings(report, out) -> str:
    """Write what is left of a data set without the records that have findings.

    Args:
        report: Of the data set.
        out: The folder to write into: an annotation file of the same name, or, for images and label maps, a list of
            the images to take away, one path a line.

    Returns:
        What was written and what was left out, in words. Where there is nothing to leave out, nothing is written.

    Raises:
        DataError: There is a file of that name, or no annotation file to start from.
    """
    source = Path(report.source)
    target = Path(out, 'take_away.txt' if source.is_dir() else source.name)
    if target.exists():
        raise DataError(f'{target} is there already, and --drop overwrites nothing: choose another folder')
    if source.is_dir():
        bad = sorted({finding.row for finding in report.findings if finding.drops})
        if not bad:
            return f'{source}: nothing to leave out'
        _write(target, ''.join(f'{path}\n' for path in bad))
        return f'{target}: {counted(len(bad), "images")} to take out of {source}, with the label maps'
    content, fault = read_coco(source)
    if fault:
        raise DataError(f'{source} cannot be cleaned: {fault}')
    dropped = [finding for finding in report.findings if finding.drops]
    if not dropped:
        return printable(f'{source}: nothing to leave out')
    rows = {part: {finding.row for finding in dropped if finding.part == part} for part in PARTS}
    kept = {part: [record for row, record in enumerate(content[part]) if row not in rows[part]] for part in PARTS}
    # what belongs to an image that is gone goes too
    ids = {record['id'] for record in kept['images']}
    before = len(kept['annotations'])
    kept['annotations'] = [record for record in kept['annotations'] if record['image_id'] in ids]
    _write(target, json.dumps({**content, **kept}))
    kinds = Counter(finding.kind for finding in dropped)
    words = [counted(len(rows[part]), part) for part in PARTS if rows[part]]
    if before > len(kept['annotations']):
        words.append(f'{counted(before - len(kept["annotations"]), "annotations")} of images that are gone')
    reasons = ', '.join(f'{kind} {number:,}' for kind, number in kinds.most_common())
    return printable(f'{target}: without {", ".join(words)} ({reasons})')


def _write(target, text):
    with atomic_write(target) as part:
        part.write_text(text)
