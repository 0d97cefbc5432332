"""What `predict` is pointed at: an image, a folder, a list of files, a video."""
import os
from pathlib import Path

from ..data.datasets import find_images
from ..data.pipelines import image_suffixes
from ..errors import DataError
from ..text import counted, listed
from .classes import test_dataset

VIDEO_SUFFIXES = ('.mp4', '.avi', '.mov', '.mkv', '.webm')


def is_video(source) -> bool:
    """Whether a source is a video, by its name; a folder is none."""
    path = Path(source).expanduser()
    return path.suffix.lower() in VIDEO_SUFFIXES and not path.is_dir()


def find_sources(source, cfg):
    """Return the folder and the image files of a file, a folder, or a list of files.

    Args:
        source: Its path; a list ends in ``.txt`` and has a path a line, from its own folder or the working one.
        cfg: The config, which may read more kinds of files.

    Raises:
        DataError: There are none, or some of a list are not there.
    """
    source = Path(source).expanduser()
    if source.suffix.lower() == '.txt' and source.is_file():
        paths = _listed_in(source)
        return Path(os.path.commonpath([path.parent for path in paths])), paths
    return find_images(source, image_suffixes(test_dataset(cfg)))


def _listed_in(file):
    """Return the absolute paths in a list, each once, in their order."""
    try:
        names = dict.fromkeys(filter(None, map(str.strip, file.read_text('utf-8-sig').splitlines())))
    except (OSError, ValueError) as error:
        raise DataError(f'{file} cannot be read as a list of files: {error}') from error
    places = {name: [Path(folder, os.path.expanduser(name)) for folder in (file.parent, '')] for name in names}
    found = {name: next(filter(os.path.isfile, paths), None) for name, paths in places.items()}
    if missing := [name for name, path in found.items() if path is None]:
        raise DataError(f'{file} lists {counted(len(missing), "files")} of {len(names):,} that are neither below '
                        f'{file.parent.absolute()} nor below {Path().absolute()}: {listed(missing)}')
    if not names:
        raise DataError(f'{file} lists no file')
    return [Path(path) for path in dict.fromkeys(map(os.path.abspath, found.values()))]
