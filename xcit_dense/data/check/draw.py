"""A contact sheet: some images of a data set with their annotations, to look at before training."""
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
    masks = _Masks([found['segmentation'] for found in objects], fitted.size, scale)
    marks = ['problem' if found['marked'] else '' for found in objects]
    drawn = draw_objects(fitted, boxes, range(len(objects)), names, [colours.get(name, WHITE) for name in names],
                         masks, marks=marks, size=_TEXT)
    _fill(cell, drawn)
    _legend(cell, dict.fromkeys(names), colours)
    return cell


class _Masks:
    """The masks of objects one by one, scaled to a picture: polygons, run lengths or None."""

    def __init__(self, segmentations, size, scale):
        self._segmentations, self._size, self._scale = segmentations, size, scale

    def __getitem__(self, index):
        found = self._segmentations[index]
        mask = np.zeros(self._size[::-1], np.uint8)
        if isinstance(found, dict):
            return cv2.resize(_decode(found), self._size, interpolation=cv2.INTER_NEAREST)
        for polygon in found if isinstance(found, list) else []:
            corners = np.array(polygon, np.float64).reshape(-1, 2) * self._scale
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


def _decode(rle):
    """Return a mask (H, W) uint8 of 0 and 1; the check has already accepted its counts."""
    height, width = rle['size']
    return mask_api.decode(rle if isinstance(rle['counts'], str) else mask_api.frPyObjects(rle, height, width))
