"""Many image files: which they are, and predictions, or other outputs, of a model for them."""
import os
from collections import Counter
from pathlib import Path

from mmengine.utils import track_iter_progress

from .._utils.files import OwnFiles, drawn_in
from .._utils.text import counted, first_line, listed
from ..data.folders import files_below, find_images, names_in_list
from ..data.pipelines import image_suffixes
from ..errors import DataError, OutputError
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


def predict_files(predictor, root, paths, out_dir, overwrite: bool = False):
    """Predict image files, or process them another way; write pictures and results into ``out_dir``.

    Results from before an interruption are kept.

    Args:
        predictor: From `xcit_dense.predict.predictor.build_predictor`, or an object with the same ``tool``,
            ``last_files``, ``ids_of``, ``files_of``, ``reader.read``, ``write`` and ``close``.
        root: The input folder; its subfolders are kept in the output.
        paths: The image files. Among several, pictures that this package drew are skipped.
        out_dir: The folder to write into.
        overwrite: Whether to replace files in ``out_dir`` that no earlier call wrote.

    Returns:
        A description of what was written.

    Raises:
        DataError: There is no image; ``out_dir`` is ``root``, or a result would replace one of the images; two images
            differ only in their suffix; or some could not be read, after the others were predicted.
        OutputError: ``out_dir`` cannot be written into, or holds such files.
    """
    root, out_dir = Path(root), Path(out_dir).expanduser()
    with OwnFiles(out_dir, predictor.tool, overwrite) as own:
        paths = without_drawn(root, paths)
        ids = predictor.ids_of(paths) or range(1, len(paths) + 1)
        names = [path.relative_to(root) for path in paths]
        files = [file for name in names for file in predictor.files_of(name)]
        _check_targets(root, paths, names, out_dir, files)
        own.claim(*files, *predictor.last_files)
        try:
            written, unreadable = _predict_all(predictor, list(zip(paths, names, ids, strict=True)), out_dir)
        except OSError as error:
            raise OutputError(f'cannot write into {out_dir}: {error}') from error
    if unreadable:
        title = (f'{len(unreadable):,} of {counted(len(paths), "images")} could not be predicted. Wrote {written}. '
                 'Errors:')
        raise DataError('\n  '.join([title, *unreadable]))
    return written


def without_drawn(root, paths) -> list:
    """Return image files; among several, skip those that this package drew, and print how many.

    Raises:
        DataError: No other images are left.
    """
    folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(root)}
    drawn = {path for folder in folders for path in drawn_in(folder)}.intersection(paths) if len(paths) > 1 else ()
    if drawn:
        print(f'skipped {counted(len(drawn), "pictures")} that this package drew')
    if len(drawn) == len(paths):
        raise DataError(f'{root} has no images except pictures that this package drew')
    return [path for path in paths if path not in drawn]


def _check_targets(root, paths, names, out_dir, files):
    inputs = {path.resolve() for path in paths}
    if out_dir.resolve() == root.resolve() or any((out_dir / file).resolve() in inputs for file in files):
        raise DataError(f'the output folder {out_dir} holds the images, which would be overwritten. Use another folder')
    stems = Counter(str(name.with_suffix('')) for name in names)
    if doubled := [stem for stem, count in stems.items() if count > 1]:
        raise DataError(f'some images in {root} differ only in their suffix and would get the same result file: '
                        f'{listed(doubled)}. Rename one of each.')


def _predict_all(predictor, jobs, out_dir):
    """Return a description of what was written, and the images that could not be read, with the reasons."""
    unreadable, count = [], 0
    try:
        for path, name, image_id in track_iter_progress(jobs):
            try:
                image = predictor.reader.read(path, image_id)
            except Exception as error:  # of any type: the pipeline may have a user's own steps
                unreadable.append(first_line(error) if isinstance(error, DataError) else f'{path}: {first_line(error)}')
                continue
            try:
                predictor.write(image, name, out_dir)
            except OSError:
                raise
            except Exception as error:  # the image may be too large for memory, or too small to draw
                unreadable.append(f'{path}: {type(error).__name__}: {first_line(error)}')
                continue
            count += 1
    finally:
        print()  # the progress bar ends without a line break
        written = f'{counted(count, "pictures")} and {predictor.close(out_dir)} in {out_dir}' if count else 'nothing'
    return written, unreadable
