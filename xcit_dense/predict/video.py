"""Predictions for the frames of a video: the video with the predictions drawn in, and results frame by frame."""
import json
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from pathlib import Path

import numpy as np
from tqdm import tqdm

from .._utils.files import OwnFiles, atomic_write
from .._utils.text import counted, first_line
from ..errors import ConfigError, DataError, OutputError, SetupError
from .predictor import SegmentationPredictor

#: Frames per second if a video does not define them.
_RATE = Fraction(25)


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
    for images, with the frame number, from 0, as ``image_id``, and its time in seconds. Files get their final names
    only at the end.

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
    path, out_dir = Path(path).expanduser(), Path(out_dir).expanduser()
    segments = isinstance(predictor, SegmentationPredictor)
    if frame_labels and not segments:
        raise ConfigError('--frame-labels works only with a segmentor; the results of a detector are in results.json')
    target, results = out_dir / f'{path.stem}.mp4', out_dir / 'results.json'
    if target.resolve() == path.resolve():
        raise DataError(f'the output folder {out_dir} holds the video, which would be overwritten. Use another folder')
    if not path.is_file():
        raise DataError(f'there is no video {path.absolute()}')
    found = 0
    with OwnFiles(out_dir, predictor.tool, overwrite) as own, _Frames(path) as frames:

        def drawn(write_record):
            """Predict the frames, write the results, and yield the drawn pictures with their times."""
            nonlocal found
            for number, (picture, seconds, pts) in enumerate(tqdm(frames, total=frames.expected, unit='frame')):
                image = predictor.reader.read(picture, number)
                sample = predictor(image)
                if frame_labels:
                    name = f'labels/{path.stem}/{number:06}.png'
                    own.claim(name)
                    predictor.write_labels(sample, out_dir / name)
                for record in () if segments else predictor.to_coco(sample, image_id=number, seconds=seconds):
                    write_record(record)
                    found += 1
                yield predictor.drawing.draw(image.picture, sample), pts
            if not frames.count:
                raise DataError(f'{path} has no frame that can be read' + (f': {frames.error}' if frames.error else ''))

        own.claim(target.name, *predictor.last_files)
        try:
            with nullcontext() if segments else _json_list(results) as write_record:
                _write_video(target, drawn(write_record), frames)
            predictor.write_classes(out_dir, **({} if segments else dict(image_ids='numbers of frames, from 0')))
        except OSError as error:
            raise OutputError(f'cannot write into {out_dir}: {error.strerror or error}') from error
    objects = '' if segments else f' and {counted(found, "objects")} (results.json)'
    written = f'{counted(frames.count, "frames")}{objects} in {target}'
    if frames.error:
        raise DataError(f'{path} breaks off after {counted(frames.count, "frames")} ({frames.error}); wrote {written}')
    return written


class _Frames:
    """The frames of a video as displayed: RGB (H, W, 3) uint8, time in seconds, and time in units of the stream.

    Iteration ends where the video ends or breaks off; ``error`` then holds the reason.
    """

    def __init__(self, path):
        av = import_av()
        self.count, self.error, self._errors = 0, '', av.error.FFmpegError
        try:
            self._file = av.open(str(path))
        except self._errors as error:
            raise DataError(f'{path} cannot be read: {error.strerror}') from error
        if not self._file.streams.video:
            self._file.close()
            raise DataError(f'{path} has no video stream')
        self._stream = stream = self._file.streams.video[0]
        stream.thread_type = 'AUTO'
        self.rate = stream.average_rate or stream.guessed_rate or _RATE
        self.time_base = stream.time_base or 1 / self.rate
        seconds = (self._file.duration or 0) / av.time_base
        #: The approximate number of frames, only for the progress bar.
        self.expected = stream.frames or round(seconds * self.rate) or None

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()

    def __iter__(self):
        first, step = None, max(round(1 / (self.rate * self.time_base)), 1)
        last = -step
        try:
            for frame in self._file.decode(self._stream):
                first = frame.pts if first is None else first
                # a frame without a time, or with an earlier one, follows the previous frame
                last = last + step if frame.pts is None or frame.pts - first <= last else frame.pts - first
                picture = frame.to_ndarray(format='rgb24')
                turns = round(getattr(frame, 'rotation', 0) / 90) % 4  # rotation tag, as phones write it
                self.count += 1
                yield np.ascontiguousarray(np.rot90(picture, turns)), float(last * self.time_base), last
        except self._errors as error:
            self.error = first_line(error)


def _write_video(path, pictures, frames):
    """Write pictures, RGB (H, W, 3) uint8, with their times, in units of some `_Frames`, as a new video."""
    av, height = import_av(), None
    with atomic_write(path) as part, av.open(str(part), 'w', format='mp4', options=dict(movflags='faststart')) as file:
        stream = file.add_stream('libx264', rate=frames.rate, options=dict(crf='20'))
        stream.pix_fmt, stream.time_base, stream.codec_context.time_base = 'yuv420p', frames.time_base, frames.time_base
        for picture, pts in pictures:
            if height is None:
                height, width = picture.shape[:2]
                stream.width, stream.height = width + width % 2, height + height % 2
            picture = picture[:height, :width]  # a stream may change its size
            picture = np.pad(picture, [(0, stream.height - picture.shape[0]), (0, stream.width - picture.shape[1]),
                                       (0, 0)], mode='edge')
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format='rgb24')
            frame.pts, frame.time_base = pts, frames.time_base
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))


@contextmanager
def _json_list(path):
    """Yield a function that appends to a list in a JSON file, without keeping it in memory."""
    with atomic_write(path) as part, open(part, 'w') as file:
        begin = '['

        def write(record):
            nonlocal begin
            file.write(begin + json.dumps(record))
            begin = ', '

        yield write
        file.write('[]' if begin == '[' else ']')
