"""A contact sheet: some images of a data set with their annotations, to look at before training."""
from pathlib import Path
from textwrap import wrap

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

from ...errors import DataError
from ...text import counted, printable
from ..channels import CHANNEL_SUFFIXES, decode, stretched
from ..classes import palette_of
from .label_maps import IGNORED_NAME

_COLUMNS, _ROWS = 4, 4
_WIDTH, _HEIGHT = 480, 360
_CAPTION = 44
_GAP = 12
_PAPER, _INK, _FRAME = (250, 250, 248), (30, 30, 30), (225, 225, 222)
_ALARM, _WHITE = (176, 0, 32), (255, 255, 255)
_NO_CLASS = '(no class)'
#: Lines for a finding.
_LINES = 3
#: An image with more objects has names on the largest alone.
_NAMED = 14


def draw_contact_sheet(report, out_file, first_names=()) -> int:
    """Draw images with boxes, masks and names, or with their label maps in colours; those with findings come first.

    Args:
        report: Of a data set; its ``samples`` are drawn, as many as there is room for.
        out_file: The picture, PNG.
        first_names: Classes that get their colours before those of the report; with the same ones here, sheets of
            several data sets have the same colours.

    Returns:
        How many images were drawn; without any there is no picture.
    """
    names = [name for name, *_ in report.classes if name != IGNORED_NAME]
    coloured = list(dict.fromkeys([*first_names, *names]))
    colours = {**dict(zip(coloured, palette_of(coloured), strict=True)), _NO_CLASS: _ALARM}
    found = [sample for sample in report.samples if sample['captions']]
    good = [sample for sample in report.samples if not sample['captions']]
    found = found[:_COLUMNS * _ROWS - min(_COLUMNS, len(good))]  # a row is for good ones
    # spread over the data set, as they are
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
    sheet = Image.new('RGB', (columns * step_x + _GAP, rows * step_y + _GAP), _PAPER)
    for index, cell in enumerate(cells):
        sheet.paste(cell, (_GAP + index % columns * step_x, _GAP + index // columns * step_y))
    Path(out_file).parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out_file)
    return len(cells)


def _read(file):
    """Return an image file as it can be seen, RGB."""
    if Path(file).suffix.lower() in CHANNEL_SUFFIXES:
        pixels = decode(Path(file).read_bytes(), file)
        if pixels.dtype != np.uint8 or pixels.shape[2:] not in ((), (3, ), (4, )):
            return Image.fromarray(stretched(pixels[..., None] if pixels.ndim == 2 else pixels))
    with Image.open(file) as image:
        return ImageOps.exif_transpose(image).convert('RGB')


def _cell(picture, title):
    """Return an empty cell with its title, and the picture and its scale as they fit into it."""
    scale = min(_WIDTH / picture.width, _HEIGHT / picture.height)
    fitted = picture.resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))),
                            Image.Resampling.LANCZOS)
    cell = Image.new('RGB', (_WIDTH, _HEIGHT + _CAPTION), _PAPER)
    ImageDraw.Draw(cell).rectangle((0, 0, _WIDTH - 1, _HEIGHT - 1), fill=_FRAME)
    ImageDraw.Draw(cell).text((2, _HEIGHT + 4), fit_text(title, font_of(14), _WIDTH - 4), fill=_INK, font=font_of(14))
    return cell, fitted, scale


def _draw_objects(picture, sample, colours):
    objects = sorted(sample['annotations'], key=lambda a: -a['bbox'][2] * a['bbox'][3])
    title = f'{Path(sample["file"]).name}   {picture.width} x {picture.height}   {counted(len(objects), "objects")}'
    cell, fitted, scale = _cell(picture, title)
    layer = Image.new('RGBA', fitted.size)
    draw = ImageDraw.Draw(layer)
    for found in objects:  # the smallest last, on top
        colour = colours.get(found['name'], _WHITE)
        for polygon in found['segmentation'] if isinstance(found['segmentation'], list) else []:
            corners = [(x * scale, y * scale) for x, y in zip(polygon[::2], polygon[1::2], strict=True)]
            draw.polygon(corners, fill=(*colour, 110))
            draw.line([*corners, corners[0]], fill=(*colour, 255), width=1)
        if isinstance(found['segmentation'], dict):
            mask = Image.fromarray(_decode(found['segmentation']) * np.uint8(110)).resize(fitted.size)
            layer.paste(colour, mask=mask)
    for found in objects:
        x, y, width, height = (v * scale for v in found['bbox'])
        outline = (x, y, x + width, y + height)
        if found['marked']:
            draw.rectangle(outline, outline=(*_ALARM, 255), width=6)
        draw.rectangle(outline, outline=(*colours.get(found['name'], _WHITE), 255), width=2)
    for found in objects[:_NAMED][::-1]:  # the largest on top
        _name(draw, layer.size, found['bbox'][0] * scale, found['bbox'][1] * scale, found['name'],
              colours.get(found['name'], _WHITE))
    fitted = Image.alpha_composite(fitted.convert('RGBA'), layer).convert('RGB')
    cell.paste(fitted, ((_WIDTH - fitted.width) // 2, (_HEIGHT - fitted.height) // 2))
    names = list(dict.fromkeys(found['name'] for found in objects))
    _legend(cell, names, colours)
    return cell


def _draw_class(picture, sample, colours):
    cell, fitted, _ = _cell(picture, f'{Path(sample["file"]).name}   {picture.width} x {picture.height}')
    cell.paste(fitted, ((_WIDTH - fitted.width) // 2, (_HEIGHT - fitted.height) // 2))
    if sample['label']:
        _name(ImageDraw.Draw(cell), cell.size, (_WIDTH - fitted.width) // 2, (_HEIGHT - fitted.height) // 2,
              sample['label'], colours.get(sample['label'], _WHITE))
        _legend(cell, [sample['label']], colours)
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
        table = np.array([*(colours[name] for name in names), _WHITE, (0, 0, 0)])  # 0: what is ignored is dark
        pixels = np.asarray(fitted)
        mixed = np.where(ignored[..., None], 0.25 * pixels, 0.4 * pixels + 0.6 * table[labels])
        y, x = np.indices(labels.shape)
        mixed[(labels == len(names)) & ((x + y) // 4 % 2 == 0)] = _ALARM
        fitted = Image.fromarray(mixed.astype(np.uint8))
        used, counts = np.unique(labels[~ignored], return_counts=True)
        _legend(cell, [[*names, _NO_CLASS][label] for label in used[np.argsort(-counts)]], colours)
    cell.paste(fitted, ((_WIDTH - fitted.width) // 2, (_HEIGHT - fitted.height) // 2))
    return cell


def _below_captions(cell, captions):
    """Return a cell with a band above it: the first finding of the image, and how many more it has."""
    band, font = 6 + 17 * _LINES, font_of(13)
    result = Image.new('RGB', (cell.width, cell.height + band), _PAPER)
    result.paste(cell, (0, band))
    if captions:
        more = f' (and {len(captions) - 1} more)' if len(captions) > 1 else ''
        draw = ImageDraw.Draw(result)
        draw.rectangle((0, 0, _WIDTH - 1, band - 1), fill=_ALARM)
        for number, line in enumerate(wrap(captions[0] + more, 66, max_lines=_LINES, placeholder=f' ...{more}')):
            draw.text((4, 3 + 17 * number), fit_text(line, font, _WIDTH - 8), fill=_WHITE, font=font)
    return result


def _legend(cell, names, colours):
    """Write as many names with their colours as there is room for."""
    draw, x, y, font = ImageDraw.Draw(cell), 2, _HEIGHT + 25, font_of(13)
    for place, name in enumerate(names):
        text = fit_text(name, font, 140)
        width = font.getlength(text) + 26
        if x + width > _WIDTH - 40 and place < len(names) - 1 or x + width > _WIDTH:
            draw.text((x, y), f'+{len(names) - place}', fill=_INK, font=font)
            return
        draw.rectangle((x, y + 2, x + 11, y + 13), fill=colours.get(name, _WHITE), outline=_INK)
        draw.text((x + 16, y), text, fill=_INK, font=font)
        x += width


def _name(draw, size, x, y, name, colour):
    """Write a name on a chip of its colour, at the corner of its box and inside the picture."""
    font = font_of(13)
    text = fit_text(name, font, 140)
    width, height = font.getlength(text) + 6, 16
    x = min(max(x, 0), max(size[0] - width, 0))
    y = y - height if y >= height else max(y, 0)
    draw.rectangle((x, y, x + width, y + height), fill=(*colour, 235))
    dark = 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2] > 140
    draw.text((x + 3, y), text, fill=(0, 0, 0, 255) if dark else (255, 255, 255, 255), font=font)


def fit_text(text, font, width) -> str:
    """Return a text as it can be shown, cut to so many pixels."""
    text = printable(text)
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(f'{text}...') > width:
        text = text[:-1]
    return f'{text}...'


def font_of(size):
    """Return the font of captions in a size: matplotlib's, which has the letters of most alphabets."""
    import matplotlib  # slow to import
    return ImageFont.truetype(Path(matplotlib.get_data_path(), 'fonts/ttf/DejaVuSans.ttf'), size)


def _decode(rle):
    """Return a mask (H, W) uint8 of 0 and 1; the check has found its counts good."""
    height, width = rle['size']
    if isinstance(rle['counts'], str):
        from pycocotools import mask as mask_api
        return mask_api.decode(rle)
    values = np.arange(len(rle['counts']), dtype=np.uint8) % 2
    return np.repeat(values, rle['counts']).reshape(width, height).T
