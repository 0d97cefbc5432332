"""The mistakes of a classifier: a list of all, and a sheet of pictures of the worst."""
import json
from pathlib import Path

from PIL import Image, ImageDraw

from ..draw.classes import ALARM, FAINT, FRAME, INK, PAPER, fit_text, font_of, legible
from ..files import atomic_write
from ..text import counted

_COLUMNS, _ROWS = 5, 4
_WIDTH, _HEIGHT = 300, 225
_TITLE, _CAPTION, _GAP = 48, 64, 14


def write_mistakes(path, mistakes, names):
    """Write mistakes as JSON, in order: path, names of truth and prediction, probability of the prediction."""
    content = [dict(path=found.path, truth=names.truth[found.truth], prediction=names.prediction[found.prediction],
                    probability=found.probability) for found in mistakes]
    with atomic_write(path) as part:
        part.write_text(json.dumps(content, indent=1))


def draw_mistakes(path, mistakes, names, count, read):
    """Draw the first mistakes as PNG, each with truth, prediction, probability and file name.

    Args:
        path: The file.
        mistakes: `Result`, the worst first.
        names: `Names` of the classes.
        count: How many images were tested.
        read: Function that returns the image of a file as an array (H, W, 3), RGB, uint8. If it raises, the cell stays
            empty.
    """
    shown = mistakes[:_COLUMNS * _ROWS]
    title = f'no mistakes among {counted(count, "images")}'
    if mistakes:
        which = f'the {len(shown)} worst of ' if len(shown) < len(mistakes) else ''
        title = f'{which}{counted(len(mistakes), "mistakes")} among {counted(count, "images")}, most confident first'
    columns, rows = min(_COLUMNS, max(len(shown), 1)), -(-len(shown) // _COLUMNS)
    step_x, step_y = _WIDTH + _GAP, _HEIGHT + _CAPTION + _GAP
    width = max(columns * step_x + _GAP, round(font_of(18).getlength(title)) + 2 * _GAP)
    sheet = Image.new('RGB', (width, _TITLE + rows * step_y), PAPER)
    ImageDraw.Draw(sheet).text((_GAP, _GAP), title, fill=INK, font=font_of(18))
    for place, found in enumerate(shown):
        corner = _GAP + place % _COLUMNS * step_x, _TITLE + place // _COLUMNS * step_y
        sheet.paste(_cell(found, names, read), corner)
    with atomic_write(path) as part:
        sheet.save(part, format='PNG')


def _cell(found, names, read):
    cell = Image.new('RGB', (_WIDTH, _HEIGHT + _CAPTION), PAPER)
    draw = ImageDraw.Draw(cell)
    draw.rectangle((0, 0, _WIDTH - 1, _HEIGHT - 1), fill=FRAME)
    try:
        picture = Image.fromarray(read(found.path))
    except Exception:  # of any type: loaders may be the user's own, and some data sets have no files
        draw.text((8, 8), 'no image', fill=FAINT, font=font_of(14))
    else:
        scale = min(_WIDTH / picture.width, _HEIGHT / picture.height)
        picture = picture.resize([max(1, round(length * scale)) for length in picture.size], Image.Resampling.LANCZOS)
        cell.paste(picture, ((_WIDTH - picture.width) // 2, (_HEIGHT - picture.height) // 2))
    share = '' if found.probability is None else f'{found.probability:.1%}'
    room = _WIDTH - font_of(15).getlength(share) - 8
    for y, text, colour, size in ((4, f'true: {names.truth[found.truth]}', INK, 15),
                                  (23, f'predicted: {names.prediction[found.prediction]}', ALARM, 15),
                                  (43, '/'.join(Path(found.path).parts[-2:]), FAINT, 12)):
        text = legible(text)
        font = font_of(size, text)
        draw.text((2, _HEIGHT + y), fit_text(text, font, room if y == 23 else _WIDTH - 4), fill=colour, font=font)
    draw.text((_WIDTH - 2, _HEIGHT + 23), share, fill=ALARM, font=font_of(15), anchor='ra')
    return cell
