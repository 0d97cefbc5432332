"""Many image files, or a video: which they are, and predictions, or other outputs, of a model for them."""
import json
import os
from collections import Counter
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
from mmengine.utils import track_iter_progress
from tqdm import tqdm

from .._utils.files import OwnFiles, atomic_write, drawn_in
from .._utils.text import counted, first_line, listed
from ..data.folders import IMAGE_SUFFIXES, files_below, find_images, names_in_list, unread_images
from ..data.pipelines import image_suffixes
from ..errors import DataError, SetupError
from .classes import test_dataset

VIDEO_SUFFIXES = ('.mp4', '.avi', '.mov', '.mkv', '.webm')


def is_video(source) -> bool:
    """Whether a source is a video, judged by its name; a folder is not."""
    path = Path(source).expanduser()
    return path.suffix.lower() in VIDEO_SUFFIXES and '://' not in str(source) and not path.is_dir()


def find_sources(source, cfg=None):
    """Return the folder and the image files of a file, a folder, or a list of files.

    Args:
        source: Its path. A list ends in ``.txt`` and has one path per line, relative to its own folder or the working
            directory; lines that start with ``#`` are comments. What is not read in a folder is printed.
        cfg: The config, which may read more file types.

    Raises:
        DataError: There are no images, or files of a list do not exist.
    """
    source = Path(source).expanduser()
    if source.suffix.lower() == '.txt' and source.is_file():
        paths = _listed_in(source)
        return Path(os.path.commonpath([path.parent for path in paths])), paths
    files, suffixes = files_below(source), image_suffixes(test_dataset(cfg)) if cfg else IMAGE_SUFFIXES
    if videos := [str(path) for path in files if is_video(path)]:
        print(f'skipped {counted(len(videos), "videos")} (give predict one video at a time): {listed(videos)}')
    if words := unread_images(files, suffixes):
        print(f'skipped {words}')
    return find_images(source, suffixes)


def _listed_in(file):
    """Return the absolute paths in a list, in order, without repetitions."""
    names = [os.path.expanduser(line) for line in names_in_list(file) if not line.startswith('#')]
    folders = file.parent.absolute(), Path().absolute()
    found = [next(filter(os.path.isfile, (folder / name for folder in folders)), None) for name in names]
    if missing := [name for name, path in zip(names, found, strict=True) if path is None]:
        raise DataError(f'{len(missing):,} of {counted(len(names), "files")} in the list {file} not found, relative to '
                        f'{" or ".join(map(str, folders))}: {listed(missing)}')
    if not names:
        raise DataError(f'the list {file} has no files')
    return [Path(path) for path in dict.fromkeys(map(os.path.abspath, found))]


def predict_files(predictor, root, paths, out_dir, overwrite: bool = False):
    """Predict image files, or process them another way; write pictures and results into ``out_dir``.

    Results from before an interruption are kept. A description of what was written is returned.

    Args:
        predictor: From `xcit_dense.predict.predictor.build_predictor`, or an object with the same ``tool``,
            ``last_files``, ``begin``, ``files_of``, ``read``, ``write`` and ``close``.
        root: The input folder; its subfolders are kept in ``out_dir``.
        paths: The image files. Among several, pictures that this package drew are skipped.
        overwrite: Whether to replace files in ``out_dir`` that no earlier call wrote.

    Raises:
        DataError: There is no image; ``out_dir`` is ``root``, or a result would replace one of the images; two images
            differ only in their suffix; or some could not be read, after the others were predicted.
        OutputError: ``out_dir`` cannot be written into, or holds such files.
    """
    root, out_dir = Path(root), Path(out_dir).expanduser()
    with OwnFiles(out_dir, predictor.tool, overwrite) as own:
        paths = without_drawn(root, paths)
        names = [path.relative_to(root) for path in paths]
        predictor.begin(names, paths)
        files = [file for name in names for file in predictor.files_of(name)]
        _check_targets(root, paths, names, out_dir, files)
        own.claim(*files, *predictor.last_files)
        unreadable, count = [], 0
        try:
            for path, name in track_iter_progress(list(zip(paths, names, strict=True))):
                try:
                    predictor.write(predictor.read(path), name, out_dir)
                    count += 1
                except DataError as error:
                    unreadable.append(first_line(error))
                except OSError:  # a full disk
                    raise
                except Exception as error:  # of any type: the image may be too large for memory, or too small to draw
                    unreadable.append(f'{path}: {type(error).__name__}: {first_line(error)}')
        finally:
            print()  # the progress bar ends without a line break
            written = f'{out_dir}: {counted(count, "pictures")} and {predictor.close(out_dir)}' if count else 'nothing'
    if unreadable:
        title = (f'{len(unreadable):,} of {counted(len(paths), "images")} could not be predicted. Wrote {written}. '
                 'Errors:')
        raise DataError('\n  '.join([title, *unreadable]))
    return written


def without_drawn(root, paths) -> list:
    """Return image files; among several, skip those that this package drew, and print how many; `DataError` if no
    others are left."""
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


def import_av():
    """Import PyAV, which only videos need; raise `SetupError` if it is not installed."""
    try:
        import av
    except ImportError as error:
        raise SetupError('videos need the package av: pip install av') from error
    return av


def predict_video(predictor, path, out_dir, overwrite: bool) -> str:
    """Predict the frames of a video one by one; write the video with the predictions drawn in, and the results.

    The output video has the name of the input with ``.mp4``, the same size and frame times, H.264 and no sound. If
    width or height is odd, the last column or row is repeated, as H.264 needs even sizes. Results of a detector are as
    for images, with the frame number, from 0, as ``image_id``, and its time in seconds. Files get their final names
    only at the end. Arguments, result and errors are those of `predict_files`; also `SetupError` without PyAV, and
    `DataError` if the file, of any format that FFmpeg reads, is no video or breaks off: what is before is written.
    """
    path, out_dir = Path(path).expanduser(), Path(out_dir).expanduser()
    target, results = out_dir / f'{path.stem}.mp4', out_dir / 'results.json'
    if target.resolve() == path.resolve():
        raise DataError(f'the output folder {out_dir} holds the video, which would be overwritten. Use another folder')
    objects, count, broken = 0, 0, []
    with OwnFiles(out_dir, predictor.tool, overwrite) as own, _opened_video(path) as (stream, rate):
        own.claim(target.name, *predictor.last_files)
        with ExitStack() as stack:
            write = stack.enter_context(_written(target, rate, stream.time_base))
            if predictor.finds_objects:  # written at once, as those of a long video would fill the memory
                records = stack.enter_context(open(stack.enter_context(atomic_write(results)), 'w'))
            for picture, pts in tqdm(_frames(stream, rate, broken), total=stream.frames or None, unit='frame'):
                image = predictor.read(picture)
                sample, fields = predictor(image), dict(image_id=count, seconds=float(pts * stream.time_base))
                for record in predictor.to_coco(sample, **fields) if predictor.finds_objects else ():
                    records.write(f'{", " if objects else "["}{json.dumps(record)}')
                    objects += 1
                write(predictor.drawing.draw(image.picture, sample), pts)
                count += 1
            if not count:
                raise DataError(': '.join([f'{path} has no frame that can be read', *broken]))
            if predictor.finds_objects:
                records.write(']' if objects else '[]')
        words = dict(image_ids='numbers of frames, from 0') if predictor.finds_objects else {}
        predictor.write_classes(out_dir, **words)
    found = f' and {counted(objects, "objects")} (results.json)' if predictor.finds_objects else ''
    written = f'{counted(count, "frames")}{found} in {target}'
    if broken:
        raise DataError(f'{path} breaks off after {counted(count, "frames")} ({broken[0]}); wrote {written}')
    return written


@contextmanager
def _opened_video(path):
    """Open a video; yield its video stream and the frames per second."""
    av = import_av()
    try:
        file = av.open(str(path))
    except av.error.FFmpegError as error:
        raise DataError(f'{path} cannot be read: {error.strerror}') from error
    with file:
        if not file.streams.video:
            raise DataError(f'{path} has no video stream')
        stream = file.streams.video[0]
        stream.thread_type = 'AUTO'
        yield stream, stream.average_rate or stream.guessed_rate or Fraction(25)


def _frames(stream, rate, broken):
    """Yield the frames of a video as displayed, RGB (H, W, 3) uint8, and their times in the unit of the stream. If the
    video breaks off, they end, and the list ``broken`` has the reason."""
    first, step = None, max(round(1 / (rate * stream.time_base)), 1)
    last = -step
    try:
        for frame in stream.container.decode(stream):
            first = frame.pts if first is None else first
            # a frame without a time, or with an earlier one, follows the previous frame
            last = last + step if frame.pts is None or frame.pts - first <= last else frame.pts - first
            turns = round(getattr(frame, 'rotation', 0) / 90) % 4  # rotation tag, as phones write it
            yield np.ascontiguousarray(np.rot90(frame.to_ndarray(format='rgb24'), turns)), last
    except import_av().error.FFmpegError as error:
        broken.append(first_line(error))


@contextmanager
def _written(path, rate, time_base):
    """Yield a function that adds a picture, RGB (H, W, 3) uint8, with its time in ``time_base``, to a new video."""
    av = import_av()
    with atomic_write(path) as part, av.open(str(part), 'w', format='mp4', options=dict(movflags='faststart')) as file:
        stream = file.add_stream('libx264', rate=rate, options=dict(crf='20'))
        stream.pix_fmt, stream.time_base, stream.codec_context.time_base = 'yuv420p', time_base, time_base

        def write(picture, pts):
            picture = np.pad(picture, [*((0, side % 2) for side in picture.shape[:2]), (0, 0)], mode='edge')
            if not stream.codec_context.is_open:  # later pictures of another size are scaled
                stream.height, stream.width = picture.shape[:2]
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format='rgb24')
            frame.pts, frame.time_base = pts, time_base
            file.mux(stream.encode(frame))

        yield write
        file.mux(stream.encode(None))
