"""Lists of images that come with a data set."""
from pathlib import Path

from ...errors import DataError
from ...text import counted, listed
from ..folders import names_in_list


def read_list(path, images) -> list:
    """Return the images that a list names.

    Args:
        path: The list: a line begins with a path, a name or a name without its suffix.
        images: All images, relative to their folder.

    Raises:
        DataError: It names images that do not exist.
    """
    known = {}
    for name in images:
        image = Path(name)
        for word in (image.stem, image.name, str(image.with_suffix('')), name):
            known[word] = name
    found, missing = [], []
    for line in names_in_list(path):
        word = line.split()[0].strip(',')
        tries = (line, word, Path(word).name, Path(word).stem)
        image = next((known[text] for text in tries if text in known), None)
        (missing if image is None else found).append(image or line)
    if missing:
        raise DataError(f'{path} lists {counted(len(missing), "images")} not found in the data: {listed(missing, 3)}')
    return list(dict.fromkeys(found))
