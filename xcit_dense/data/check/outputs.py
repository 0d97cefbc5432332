"""What a check writes: a contact sheet of annotated images, and a copy of the annotations without wrong entries."""
import json
import os
from collections import Counter
from pathlib import Path
from textwrap import wrap

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageOps
from pycocotools import mask as mask_api

from ..._utils.files import OwnFiles, atomic_write
from ..._utils.text import counted, printable
from ...draw import class_colours, draw_map, draw_objects
from ...draw.classes import ALARM, FRAME, INK, PAPER, WHITE, chip, draw_legend, fit_text, font_of
from ...draw.pictures import paste
from ...errors import DataError
from ..channels import CHANNEL_SUFFIXES, decode, stretched
from .coco_file import PARTS, read_coco
from .label_maps import IGNORED_NAME

_COLUMNS, _ROWS = 4, 4
_WIDTH, _HEIGHT = 480, 360
_CAPTION = 44
_GAP = 12
#: Sizes of text in pixels.
_TITLE, _TEXT = 14, 13
_NO_CLASS = '(no class)'
#: Lines of text for a finding.
_LINES = 3


def draw_contact_sheet(report, out_file, first_names=(), palette=None) -> int:
    """Draw images with boxes, masks and names, or with coloured label maps; images with findings come first.

    Args:
        report: The report of a data set; as many of its ``samples`` are drawn as there is room for.
        out_file: The PNG file to write.
        first_names: Classes that get their colours before those of the report; with the same names here, sheets of
            several data sets have the same colours.
        palette: Colours by name of classes that have one in the data set.

    Returns:
        How many images were drawn; if there are none, no file is written.
    """
    names = [name for name, *_ in report.classes if name != IGNORED_NAME]
    coloured = list(dict.fromkeys([*first_names, *names]))
    colours = {**dict(zip(coloured, class_colours(coloured), strict=True)), **(palette or {}), _NO_CLASS: ALARM}
    found = [sample for sample in report.samples if sample['captions']]
    good = [sample for sample in report.samples if not sample['captions']]
    found = found[:_COLUMNS * _ROWS - min(_COLUMNS, len(good))]  # one row is for good ones
    # spread over the data set
    places = np.linspace(0, len(good) - 1, min(_COLUMNS * _ROWS - len(found), len(good))).round().astype(int)
    cells = []
    for sample in [*found, *(good[place] for place in places)]:
        try:
            picture = _read(sample['file'])
            cell = (_draw_map(picture, sample, names, colours) if 'map' in sample else
                    _draw_class(picture, sample, colours) if 'label' in sample else
                    _draw_objects(picture, sample, colours))
        except (DataError, OSError, Image.DecompressionBombError):  # damage that headers do not show
            continue
        cells.append(_below_captions(cell, sample['captions']) if found else cell)
    if not cells:
        return 0
    columns = min(_COLUMNS, len(cells))
    rows = -(-len(cells) // columns)
    step_x, step_y = _WIDTH + _GAP, cells[0].height + _GAP
    sheet = Image.new('RGB', (columns * step_x + _GAP, rows * step_y + _GAP), PAPER)
    for index, cell in enumerate(cells):
        sheet.paste(cell, (_GAP + index % columns * step_x, _GAP + index // columns * step_y))
    Path(out_file).parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out_file, compress_level=1)  # Pillow's default takes three times as long, for 7 percent less
    return len(cells)


def _read(file):
    """Return an image file as a viewable RGB image."""
    if Path(file).suffix.lower() in CHANNEL_SUFFIXES:
        pixels = decode(Path(file).read_bytes(), file)
        if pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (3, ), (4, )):
            return Image.fromarray(stretched(pixels[..., None] if pixels.ndim == 2 else pixels))
    with Image.open(file) as image:
        return ImageOps.exif_transpose(image).convert('RGB')


def _cell(picture, title):
    """Return an empty cell with its title, the image resized to fit in it, and the scale."""
    scale = min(_WIDTH / picture.width, _HEIGHT / picture.height)
    fitted = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))),
                            Image.Resampling.LANCZOS)
    cell = Image.new('RGB', (_WIDTH, _HEIGHT + _CAPTION), PAPER)
    ImageDraw.Draw(cell).rectangle((0, 0, _WIDTH - 1, _HEIGHT - 1), fill=FRAME)
    ImageDraw.Draw(cell).text((2, _HEIGHT + 4), fit_text(title, font_of(_TITLE), _WIDTH - 4), fill=INK,
                              font=font_of(_TITLE))
    return cell, fitted, scale


def _draw_objects(picture, sample, colours):
    objects = sorted(sample['annotations'], key=lambda a: -a['bbox'][2] * a['bbox'][3])
    title = f'{Path(sample["file"]).name}   {picture.width} x {picture.height}   {counted(len(objects), "objects")}'
    cell, fitted, scale = _cell(picture, title)
    names = [found['name'] for found in objects]
    boxes = [(x * scale, y * scale, (x + width) * scale, (y + height) * scale)
             for x, y, width, height in (found['bbox'] for found in objects)]
    masks = [_mask(found['segmentation'], fitted.size, scale) for found in objects]
    marks = ['problem' if found['marked'] else '' for found in objects]
    drawn = draw_objects(fitted, boxes, range(len(objects)), names, [colours.get(name, WHITE) for name in names],
                         masks, marks=marks, size=_TEXT)
    _fill(cell, drawn)
    _legend(cell, dict.fromkeys(names), colours)
    return cell


def _mask(segmentation, size, scale):
    """Return polygons, run lengths, which the check has accepted, or None as a mask (H, W) uint8 of 0 and 1."""
    if isinstance(segmentation, dict):
        whole = isinstance(segmentation['counts'], str)
        return cv2.resize(mask_api.decode(segmentation if whole else mask_api.frPyObjects(
            segmentation, *segmentation['size'])), size, interpolation=cv2.INTER_NEAREST)
    mask = np.zeros(size[::-1], np.uint8)
    for polygon in segmentation or ():
        corners = np.array(polygon, np.float64).reshape(-1, 2) * scale
        cv2.fillPoly(mask, [corners.round().astype(np.int32)], 1)
    return mask


def _draw_class(picture, sample, colours):
    cell, fitted, _ = _cell(picture, f'{Path(sample["file"]).name}   {picture.width} x {picture.height}')
    pixels = np.array(fitted)
    if sample['label']:
        paste(pixels, chip(sample['label'], _TEXT, colours.get(sample['label'], WHITE), fitted.width), 0, 0)
        _legend(cell, [sample['label']], colours)
    _fill(cell, pixels)
    return cell


def _draw_map(picture, sample, names, colours):
    cell, fitted, _ = _cell(picture, f'{Path(sample["file"]).name}   {picture.width} x {picture.height}')
    if sample['map'] is not None:
        with Image.open(sample['map']) as image:
            labels = np.asarray(image.resize(fitted.size, Image.Resampling.NEAREST)).astype(np.uint8)
        ignored = np.isin(labels, sample['ignored'])
        places = np.full(256, len(names))
        for place, label in enumerate(sample['labels'][:256]):
            places[label:label + 1] = place
        labels = np.where(ignored, -1, places[labels])
        fitted = draw_map(fitted, labels, names, [colours[name] for name in names], ignored=(-1, ), named=False)
        used, counts = np.unique(labels[~ignored], return_counts=True)
        _legend(cell, [[*names, _NO_CLASS][label] for label in used[np.argsort(-counts)]], colours)
    _fill(cell, fitted)
    return cell


def _fill(cell, picture):
    """Put a picture into the middle of its cell."""
    height, width = np.shape(picture)[:2]
    cell.paste(Image.fromarray(np.asarray(picture)), ((_WIDTH - width) // 2, (_HEIGHT - height) // 2))


def _below_captions(cell, captions):
    """Return a cell with a band above it that shows the first finding of the image and how many more it has."""
    band, font = 6 + 17 * _LINES, font_of(_TEXT)
    result = Image.new('RGB', (cell.width, cell.height + band), PAPER)
    result.paste(cell, (0, band))
    if captions:
        more = f' (and {len(captions) - 1} more)' if len(captions) > 1 else ''
        draw = ImageDraw.Draw(result)
        draw.rectangle((0, 0, _WIDTH - 1, band - 1), fill=ALARM)
        for number, line in enumerate(wrap(captions[0] + more, 66, max_lines=_LINES, placeholder=f' ...{more}')):
            draw.text((4, 3 + 17 * number), fit_text(line, font, _WIDTH - 8), fill=WHITE, font=font)
    return result


def _legend(cell, names, colours):
    names = list(names)
    draw_legend(cell, 2, _HEIGHT + 25, _WIDTH, names, [colours.get(name, WHITE) for name in names], _TEXT)


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
