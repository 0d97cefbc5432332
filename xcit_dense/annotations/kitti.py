"""KITTI 2D: a text file for each image, a line for each object."""
import re
from collections import Counter

from .._utils.files import read_text
from .._utils.text import shown
from ..data.files import Unreadable
from .objects import box

#: A class, then truncated, occluded, alpha, the four sides of the box, seven numbers in space, and perhaps a score.
_NUMBERS = re.compile(r'(\D\S*(?: \S+)*?)((?: [-+.\deE]+){14,15})')


def read_labels(path) -> dict | None:
    """Read a file for `xcit_dense.annotations.label_files`; None if it is other text."""
    objects, left_out = [], Counter()
    for number, line in enumerate(filter(str.strip, read_text(path).splitlines()), 1):
        if not (found := _NUMBERS.fullmatch(' '.join(line.split()))):
            if number == 1:
                return None
            raise Unreadable(f'line {number} is no class with 14 numbers: {shown(line)}')
        if found[1] == 'DontCare':
            left_out['regions of DontCare'] += 1
        else:
            sides = map(float, found[2].split()[3:7])
            objects.append(dict(box(*sides), label=found[1], label_place=f'line {number}'))
    return dict(image=None, size=None, objects=objects, left_out=left_out)
