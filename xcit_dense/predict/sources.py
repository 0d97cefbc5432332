"""The inputs of `predict`: an image, a folder, a list of files or a video."""
import os
from pathlib import Path

from ..data.datasets import find_images
from ..data.folders import files_below, names_in_list
from ..data.pipelines import image_suffixes
from ..errors import DataError
from ..text import counted, listed
from .classes import test_dataset

VIDEO_SUFFIXES = ('.mp4', '.avi', '.mov', '.mkv', '.webm')


def is_video(source) -> bool:
    """Whether a source is a video, judged by its name; a folder is not."""
    path = Path(source).expanduser()
    return path.suffix.lower() in VIDEO_SUFFIXES and not path.is_dir()


def find_sources(source, cfg):
    """Return the folder and the image files of a file, a folder, or a list of files.

    Args:
        source: Its path. A list ends in ``.txt`` and has one path per line, relative to its own folder or the working
            directory; lines that start with ``#`` are comments. Videos in a folder are skipped with a message.
        cfg: The config, which may read more file types.

    Raises:
        DataError: There are no images, or files of a list do not exist.
    """
    if '://' in str(source):
        raise DataError(f'{source} is an address. Download it and give the file')
    source = Path(source).expanduser()
    if source.suffix.lower() == '.txt' and source.is_file():
        paths = _listed_in(source)
        return Path(os.path.commonpath([path.parent for path in paths])), paths
    if videos := [str(path) for path in files_below(source) if is_video(path)]:
        print(f'skipped {counted(len(videos), "videos")} (give predict one video at a time): {listed(videos)}')
    return find_images(source, image_suffixes(test_dataset(cfg)))


def _listed_in(file):
    """Return the absolute paths in a list, in order, without repetitions."""
    names = list(dict.fromkeys(line for line in names_in_list(file) if not line.startswith('#')))
    folders = list(dict.fromkeys((file.parent.absolute(), Path().absolute())))
    places = {name: [folder / os.path.expanduser(name) for folder in folders] for name in names}
    found = {name: next(filter(os.path.isfile, paths), None) for name, paths in places.items()}
    if missing := [name for name, path in found.items() if path is None]:
        raise DataError(f'{len(missing):,} of {counted(len(names), "files")} in the list {file} not found, relative to '
                        f'{" or ".join(map(str, folders))}: {listed(missing)}')
    if not names:
        raise DataError(f'the list {file} has no files')
    return [Path(path) for path in dict.fromkeys(map(os.path.abspath, found.values()))]
