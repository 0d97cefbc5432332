"""The contact sheet of a check: annotated images, those with findings first."""
from contextlib import suppress
from pathlib import Path
from textwrap import wrap

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageOps
from pycocotools import mask as mask_api

from ..._utils.text import counted
from ...draw import class_colours, draw_map, draw_objects
from ...draw.classes import ALARM, FRAME, INK, PAPER, WHITE, chip, draw_legend, fit_text, font_of
from ...draw.pictures import paste
from ...errors import DataError
from ..channels import CHANNEL_SUFFIXES, decode, stretched
from .images import IGNORED_NAME

_COLUMNS, _ROWS = 4, 4
_WIDTH, _HEIGHT, _CAPTION, _GAP = 480, 360, 44, 12
#: Sizes of text in pixels.
_TITLE, _TEXT = 14, 13
_NO_CLASS = '(no class)'
#: Lines of text for a finding, and the height of their band in pixels.
_LINES, _BAND = 3, 57


def draw_contact_sheet(report, out_file, first_names=(), palette=None) -> int:
    """Draw samples of a report, with boxes, masks and names or label maps, into a PNG file, and return how many.

    As many are drawn as there is room for; without any, no file is written. With the same ``first_names``, which get
    their colours before the other classes, sheets of several data sets have the same colours. ``palette`` has those of
    the data set by name.
    """
    names = [name for name, *_ in report.classes if name != IGNORED_NAME]
    coloured = list(dict.fromkeys([*first_names, *names]))
    colours = {**dict(zip(coloured, class_colours(coloured), strict=True)), **(palette or {}), _NO_CLASS: ALARM}
    samples = report.samples[:_COLUMNS * _ROWS]
    band = _BAND if any(sample['captions'] for sample in samples) else 0
    cells = []
    for sample in samples:
        with suppress(DataError, OSError, Image.DecompressionBombError):  # damage that headers do not show
            cells.append(_cell(sample, names, colours, band))
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


def _cell(sample, names, colours, band):
    """Return a picture of a sample with title and legend below it, and a band of some height above it for findings."""
    picture = _read(sample['file'])
    scale = min(_WIDTH / picture.width, _HEIGHT / picture.height)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    fitted = picture.resize((width, height), Image.Resampling.LANCZOS)
    title = f'{Path(sample["file"]).name}   {picture.width} x {picture.height}'
    if 'map' in sample:
        drawn, legend = _draw_map(fitted, sample, names, colours)
    elif 'label' in sample:
        drawn, legend = np.array(fitted), [sample['label']] * bool(sample['label'])
        for label in legend:
            paste(drawn, chip(label, _TEXT, colours.get(label, WHITE), width), 0, 0)
    else:
        drawn, legend = _draw_objects(fitted, sample['annotations'], colours, scale)
        title += f'   {counted(len(sample["annotations"]), "objects")}'
    cell = Image.new('RGB', (_WIDTH, band + _HEIGHT + _CAPTION), PAPER)
    draw, font = ImageDraw.Draw(cell), font_of(_TEXT)
    draw.rectangle((0, band, _WIDTH - 1, band + _HEIGHT - 1), fill=FRAME)
    cell.paste(Image.fromarray(np.asarray(drawn)), ((_WIDTH - width) // 2, band + (_HEIGHT - height) // 2))
    draw.text((2, band + _HEIGHT + 4), fit_text(title, font_of(_TITLE), _WIDTH - 4), fill=INK, font=font_of(_TITLE))
    draw_legend(cell, 2, band + _HEIGHT + 25, _WIDTH, legend, [colours.get(name, WHITE) for name in legend], _TEXT)
    if captions := sample['captions']:
        more = f' (and {len(captions) - 1} more)' if len(captions) > 1 else ''
        draw.rectangle((0, 0, _WIDTH - 1, band - 1), fill=ALARM)
        for number, line in enumerate(wrap(captions[0] + more, 66, max_lines=_LINES, placeholder=f' ...{more}')):
            draw.text((4, 3 + 17 * number), fit_text(line, font, _WIDTH - 8), fill=WHITE, font=font)
    return cell


def _read(file):
    """Return an image file as a viewable RGB image."""
    if Path(file).suffix.lower() in CHANNEL_SUFFIXES:
        pixels = decode(Path(file).read_bytes(), file)
        if pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (3, ), (4, )):
            return Image.fromarray(stretched(pixels[..., None] if pixels.ndim == 2 else pixels))
    with Image.open(file) as image:
        return ImageOps.exif_transpose(image).convert('RGB')


def _draw_objects(picture, objects, colours, scale):
    """Return the pixels of a picture with objects of its file, and the names for its legend."""
    objects = sorted(objects, key=lambda found: -found['bbox'][2] * found['bbox'][3])
    names = [found['name'] for found in objects]
    boxes = [(x * scale, y * scale, (x + width) * scale, (y + height) * scale)
             for x, y, width, height in (found['bbox'] for found in objects)]
    masks = [_mask(found['segmentation'], picture.size, scale) for found in objects]
    marks = ['problem' if found['marked'] else '' for found in objects]
    written = names if len(colours) > 2 else [''] * len(names)  # of one class, the legend has the name
    return draw_objects(picture, boxes, range(len(objects)), written, [colours.get(name, WHITE) for name in names],
                        masks, marks=marks, size=_TEXT), list(dict.fromkeys(names))


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


def _draw_map(picture, sample, names, colours):
    if sample['map'] is None:
        return picture, []
    with Image.open(sample['map']) as image:
        labels = np.asarray(image.resize(picture.size, Image.Resampling.NEAREST)).astype(np.uint8)
    ignored = np.isin(labels, sample['ignored'])
    places = np.full(256, len(names))
    for place, label in enumerate(sample['labels'][:256]):
        places[label:label + 1] = place
    labels = np.where(ignored, -1, places[labels])
    used, counts = np.unique(labels[~ignored], return_counts=True)
    return (draw_map(picture, labels, names, [colours[name] for name in names], ignored=(-1, ), named=False),
            [[*names, _NO_CLASS][label] for label in used[np.argsort(-counts)]])
