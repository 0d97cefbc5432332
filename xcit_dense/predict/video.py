"""Predictions for the frames of a video: the video with the predictions drawn in, and results frame by frame."""
import json
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .._utils.files import OwnFiles, atomic_write
from .._utils.text import counted, first_line
from ..errors import ConfigError, DataError, OutputError, SetupError
from .predictor import SegmentationPredictor


def import_av():
    """Import PyAV, which only videos need.

    Raises:
        SetupError: It is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise SetupError('videos need the package av: pip install av') from error
    return av


def predict_video(predictor, path, out_dir, overwrite: bool, frame_labels: bool) -> str:
    """Predict the frames of a video one by one; write the video with the predictions drawn in, and the results.

    The output video has the name of the input with ``.mp4``, the same size and frame times, H.264 and no sound. If
    width or height is odd, the last column or row is repeated, as H.264 needs even sizes. Results of a detector are as
    for images, with the frame number, from 0, as ``image_id``, and its time in seconds. Memory holds them until
    the end, when files get their final names.

    Args:
        predictor: From `xcit_dense.predict.predictor.build_predictor`.
        path: The video, in any format that FFmpeg reads.
        out_dir: The folder to write into.
        overwrite: Whether to replace files in ``out_dir`` that no earlier call wrote.
        frame_labels: Whether to write the label maps of a segmentor: ``labels/NAME/000000.png``.

    Returns:
        A description of what was written.

    Raises:
        ConfigError: ``frame_labels`` is set for a detector.
        DataError: The file is not a video, or it breaks off; the frames before that are written anyway.
        OutputError: ``out_dir`` cannot be written into, or holds such files.
        SetupError: PyAV is not installed.
    """
    av, path, out_dir = import_av(), Path(path).expanduser(), Path(out_dir).expanduser()
    segments = isinstance(predictor, SegmentationPredictor)
    if frame_labels and not segments:
        raise ConfigError('--frame-labels works only with a segmentor; the results of a detector are in results.json')
    target, results = out_dir / f'{path.stem}.mp4', out_dir / 'results.json'
    if target.resolve() == path.resolve():
        raise DataError(f'the output folder {out_dir} holds the video, which would be overwritten. Use another folder')
    if not path.is_file():
        raise DataError(f'there is no video {path.absolute()}')
    records, count, broken = [], 0, []
    with OwnFiles(out_dir, predictor.tool, overwrite) as own, _opened(path) as (file, stream, rate, time_base):
        own.claim(target.name, *predictor.last_files)
        # only for the progress bar
        expected = stream.frames or round((file.duration or 0) / av.time_base * rate) or None
        try:
            with _written(target, rate, time_base) as write:
                for picture, pts in tqdm(_frames(file, stream, rate, time_base, broken), total=expected, unit='frame'):
                    image = predictor.reader.read(picture, count)
                    sample = predictor(image)
                    if frame_labels:
                        name = f'labels/{path.stem}/{count:06}.png'
                        own.claim(name)
                        predictor.write_labels(sample, out_dir / name)
                    if not segments:
                        found = predictor.to_coco(sample, image_id=count, seconds=float(pts * time_base))
                        records += map(json.dumps, found)  # smaller than dicts
                    write(predictor.drawing.draw(image.picture, sample), pts)
                    count += 1
                if not count:
                    raise DataError(': '.join([f'{path} has no frame that can be read', *broken]))
            if not segments:
                with atomic_write(results) as part:
                    part.write_text(f'[{", ".join(records)}]')
            predictor.write_classes(out_dir, **({} if segments else dict(image_ids='numbers of frames, from 0')))
        except OSError as error:
            raise OutputError(f'cannot write into {out_dir}: {error.strerror or error}') from error
    objects = '' if segments else f' and {counted(len(records), "objects")} (results.json)'
    written = f'{counted(count, "frames")}{objects} in {target}'
    if broken:
        raise DataError(f'{path} breaks off after {counted(count, "frames")} ({broken[0]}); wrote {written}')
    return written


@contextmanager
def _opened(path):
    """Open a video; yield the file, its video stream, the frames per second, and the unit of its times."""
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
        rate = stream.average_rate or stream.guessed_rate or Fraction(25)
        yield file, stream, rate, stream.time_base or 1 / rate


def _frames(file, stream, rate, time_base, broken):
    """Yield the frames of a video as displayed, RGB (H, W, 3) uint8, and their times in units of ``time_base``.

    Ends where the video ends or breaks off; the list ``broken`` then has the reason.
    """
    first, step = None, max(round(1 / (rate * time_base)), 1)
    last = -step
    try:
        for frame in file.decode(stream):
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
        size = []

        def write(picture, pts):
            if not size:
                size.extend(picture.shape[:2])
                stream.height, stream.width = (side + side % 2 for side in size)
            picture = picture[:size[0], :size[1]]  # a stream may change its size
            picture = np.pad(picture, [(0, stream.height - picture.shape[0]), (0, stream.width - picture.shape[1]),
                                       (0, 0)], mode='edge')
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format='rgb24')
            frame.pts, frame.time_base = pts, time_base
            file.mux(stream.encode(frame))

        yield write
        file.mux(stream.encode(None))
