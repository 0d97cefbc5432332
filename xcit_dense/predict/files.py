"""What a model gives for many image files, predictions or others."""
from collections import Counter
from pathlib import Path

from mmengine.utils import track_iter_progress

from ..errors import DataError, OutputError
from ..files import OwnFiles, drawn_in
from ..text import counted, first_line, listed


def predict_files(predictor, root, paths, out_dir, overwrite: bool = False):
    """Predict image files, or look at them another way; write pictures and results into ``out_dir``.

    What was done before an interruption is kept.

    Args:
        predictor: Of `xcit_dense.predict.predictor.build_predictor`, or what has the same ``tool``, ``last_files``,
            ``ids_of``, ``files_of``, ``reader.read``, ``write`` and ``close``.
        root: The folder below which the output keeps the folders of the input.
        paths: The image files. Of several, pictures that this package drew are left out.
        out_dir: The folder to write into.
        overwrite: Whether files in ``out_dir`` may be replaced that no earlier call wrote.

    Returns:
        What was written, in words.

    Raises:
        DataError: There is no image; ``out_dir`` is ``root``, or a result would replace one of the images; two images
            have the same name but for the suffix; or some could not be read, and the others are done all the same.
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
        title = f'{len(unreadable)} of {len(paths)} images could not be predicted; wrote {written}. These could not:'
        raise DataError('\n  '.join([title, *unreadable]))
    return written


def without_drawn(root, paths) -> list:
    """Return image files below a folder, of several without those that this package drew, and tell of these.

    Raises:
        DataError: There are no others.
    """
    folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(root)}
    drawn = {path for folder in folders for path in drawn_in(folder)}.intersection(paths) if len(paths) > 1 else ()
    if drawn:
        print(f'left out {counted(len(drawn), "pictures")} that this package drew')
    if len(drawn) == len(paths):
        raise DataError(f'there is no image in {root} but pictures that this package drew')
    return [path for path in paths if path not in drawn]


def _check_targets(root, paths, names, out_dir, files):
    inputs = {path.resolve() for path in paths}
    if out_dir.resolve() == root.resolve() or any((out_dir / file).resolve() in inputs for file in files):
        raise DataError(f'{out_dir} holds the images, and the pictures would overwrite them; give another folder')
    stems = Counter(str(name.with_suffix('')) for name in names)
    if doubled := [stem for stem, count in stems.items() if count > 1]:
        raise DataError(f'several images in {root} have one name but for the suffix, and would have one result: '
                        f'{listed(doubled)}. Rename one of each.')


def _predict_all(predictor, jobs, out_dir):
    """Return what was written, in words, and the images that could not be read, with the reason."""
    unreadable, count = [], 0
    try:
        for path, name, image_id in track_iter_progress(jobs):
            try:
                image = predictor.reader.read(path, image_id)
            except Exception as error:  # of any type: steps of the pipeline may be the user's own
                unreadable.append(first_line(error) if isinstance(error, DataError) else f'{path}: {first_line(error)}')
                continue
            try:
                predictor.write(image, name, out_dir)
            except OSError:
                raise
            except Exception as error:  # it may be too large for the memory, or too small to be drawn
                unreadable.append(f'{path}: {type(error).__name__}: {first_line(error)}')
                continue
            count += 1
    finally:
        print()  # the progress bar ends without a line break
        written = f'{counted(count, "pictures")} and {predictor.close(out_dir)} in {out_dir}' if count else 'nothing'
    return written, unreadable
