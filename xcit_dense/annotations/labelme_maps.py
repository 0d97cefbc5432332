"""LabelMe's files drawn as label maps, for segmentation."""
import os
from pathlib import Path

import numpy as np
from pycocotools import mask as mask_api

from .._utils.text import counted, listed
from ..data.files import IGNORED, read_header
from ..errors import DataError
from .conversion import write_maps
from .label_files import class_names, read_label_files
from .labelme import BACKGROUND, IGNORE
from .objects import drawn
from .pairs import Pair


def draw_label_maps(root: Path, options, made) -> tuple:
    """Write a label map for each file of LabelMe: 0 for the background, later objects above earlier ones.

    Returns `Pair` by part, the names of the classes, and sentences on what a user might not expect.
    """
    files, notes = read_label_files('LabelMe', root, options, made)
    names = (BACKGROUND, *class_names(files, root, root))
    if len(names) > IGNORED:
        raise DataError(f'{root} has {counted(len(names), "classes")}, but label maps have room for only {IGNORED}')
    top = Path(os.path.commonpath([labelled.image.parent for labelled in files]))
    by_file = {str(labelled.file): labelled for labelled in files}
    targets = {labelled.file: Path('maps', labelled.image.relative_to(top)).with_suffix('.png').as_posix()
               for labelled in files}
    numbers = {**{name: number for number, name in enumerate(names)}, IGNORE: IGNORED}

    def draw(path):
        size, image = by_file[path].content['size'], by_file[path].image
        width, height = size if min(size) > 0 else read_header(image)['turned']
        labels = np.zeros((height, width), np.uint8)
        for record in by_file[path].content['objects']:
            labels[mask_api.decode(drawn(record, width, height)) > 0] = numbers[record['label']]
        return labels

    if wrong := write_maps(targets, draw, list(names), root, made, 'maps.json'):
        raise DataError(f'{counted(len(wrong), "files")} of LabelMe cannot be drawn: {listed(wrong, 3)}')
    pairs = {}
    for part in dict.fromkeys(labelled.part for labelled in files):
        chosen = [labelled.image.relative_to(top).as_posix() for labelled in files if labelled.part == part]
        pairs[part] = Pair(top, made.folder / 'maps', chosen, chosen, '', '.png', chosen, 'LabelMe files')
    return pairs, names, notes
