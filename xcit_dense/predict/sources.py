"""What `predict` is pointed at: an image, a folder, a list of files, a video."""
import os
from pathlib import Path

from ..data.datasets import find_images
from ..data.folders import files_below
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
        source: Its path; a list ends in ``.txt`` and has a path a line, from its own folder or the working one, and
            comments in lines that begin with ``#``. Videos in a folder are left out, and told of.
        cfg: The config, which may read more kinds of files.

    Raises:
        DataError: There are none, or some of a list are not there.
    """
    if '://' in str(source):
        raise DataError(f'{source} is an address: download it, and give the file')
    source = Path(source).expanduser()
    if source.suffix.lower() == '.txt' and source.is_file():
        paths = _listed_in(source)
        return Path(os.path.commonpath([path.parent for path in paths])), paths
    if videos := [str(path) for path in files_below(source) if is_video(path)]:
        print(f'left out {counted(len(videos), "videos")}, which predict takes alone: {listed(videos)}')
    return find_images(source, image_suffixes(test_dataset(cfg)))


def _listed_in(file):
    """Return the absolute paths in a list, each once, in their order."""
    try:
        lines = map(str.strip, file.read_text('utf-8-sig').splitlines())
    except (OSError, ValueError) as error:
        raise DataError(f'{file} cannot be read as a list of files: {error}') from error
    names = list(dict.fromkeys(line for line in lines if line and not line.startswith('#')))
    folders = list(dict.fromkeys((file.parent.absolute(), Path().absolute())))
    places = {name: [folder / os.path.expanduser(name) for folder in folders] for name in names}
    found = {name: next(filter(os.path.isfile, paths), None) for name, paths in places.items()}
    if missing := [name for name, path in found.items() if path is None]:
        raise DataError(f'{file} lists {counted(len(missing), "files")} of {len(names):,} that are not there, with '
                        f'paths from {" or ".join(map(str, folders))}: {listed(missing)}')
    if not names:
        raise DataError(f'{file} lists no file')
    return [Path(path) for path in dict.fromkeys(map(os.path.abspath, found.values()))]
