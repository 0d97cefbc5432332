"""What predict accepts in addition to an image and a folder, and the ids of images: lists of files, videos."""
import json
import shutil
import sys
from fractions import Fraction
from pathlib import Path
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

import xcit_dense
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense._utils.files import RECORD
from xcit_dense.predict.drawing import Drawing

NAMES = [f'00000000000{i}.jpg' for i in (1, 2, 3)]


@pytest.fixture
def predict(trained, tmp_path):
    """A function that predicts a source with the detector into ``out``; it returns what run_tool does."""

    def predict(source, *options, check=True):
        return run_tool('predict.py', TINY_CONFIG, trained[0], source, '--out', tmp_path / 'out', *options,
                        cwd=tmp_path, check=check)

    return predict


@pytest.fixture
def frames(demo_data):
    """Five frames of the demo's pictures, which move."""
    picture = cv2.imread(str(demo_data / 'val2017' / NAMES[0]))[..., ::-1]
    return [np.ascontiguousarray(np.roll(picture, 4 * i, 1)) for i in range(5)]


def read(folder, name='results'):
    return json.loads((folder / f'out/{name}.json').read_text())


@pytest.mark.parametrize('names, words', (
    (NAMES, 'instances_val2017.json'), (('7.jpg', '8.jpg'), 'the numbers in the file names'),
    (('a.jpg', 'b.jpg'), 'counted from 1')))
def test_the_results_say_what_ids_are(names, words, predict, demo_data, tmp_path):
    """Images of formats that are not read are counted."""
    (tmp_path / 'images').mkdir()
    for name in names:
        shutil.copy(demo_data / 'val2017' / NAMES[0], tmp_path / 'images' / name)
    for name in ('a.HEIC', 'b.heic', 'c.avif', 'notes.doc'):
        (tmp_path / 'images' / name).touch()
    said = predict(demo_data / 'val2017' if names is NAMES else 'images', '--cfg-options',
                   f'test_dataloader.dataset.data_root={demo_data}/').stdout
    assert words in read(tmp_path, 'classes')['image_ids']
    assert ('skipped 3 images of formats that are not read (2 .heic, 1 .avif): convert' in said) == (names is not NAMES)


def test_a_list_of_files(predict, demo_data, tmp_path):
    """From the folder of the list, from the working one, absolute, twice; with blanks, a comment, marks of Windows."""
    shutil.copytree(demo_data / 'val2017', tmp_path / 'lists/deep')
    for name in ('here.jpg', 'both.jpg', 'lists/both.jpg'):
        shutil.copy(demo_data / 'val2017' / NAMES[0], tmp_path / name)
    (tmp_path / 'lists/list.txt').write_text(f'\ufeffdeep/{NAMES[0]}\r\n\n# a comment\n here.jpg \n'
                                             f'{tmp_path}/lists/deep/{NAMES[1]}\ndeep\\{NAMES[0]}\nboth.jpg\n')
    assert '4 pictures' in predict('lists/list.txt').stdout
    assert {record['file_name'] for record in read(tmp_path)} == {
        f'lists/deep/{NAMES[0]}', 'here.jpg', f'lists/deep/{NAMES[1]}', 'lists/both.jpg'}


def test_videos_in_a_folder_are_told_of(predict, demo_data, tmp_path):
    (tmp_path / 'in/deep').mkdir(parents=True)
    (tmp_path / 'in/deep/a.mp4').touch()
    for code, words in ((1, 'no image'), (0, '1 picture and')):
        done = predict('in', check=False)
        assert done.returncode == code and words in done.stdout and '1 video' in done.stdout
        assert 'deep/a.mp4' in done.stdout
        shutil.copy(demo_data / 'val2017' / NAMES[0], tmp_path / 'in')


@pytest.mark.parametrize('source, options, content, words', (
    ('https://example.com/a.mp4', '', b'', ('example.com/a.mp4 is no file on this machine: download', )),
    ('0', '', b'', ('record a camera', )), ('none', '', b'', ('there is no image or folder', )),
    ('FILE.txt', '', b'a.jpg\nb.jpg\n', ('2 of 2 files', 'a.jpg, b.jpg')), ('FILE.txt', '', b'\n', ('has no files', )),
    ('FILE.txt', '', b'\xff\xfe\x00', ('cannot be read', )), ('FILE.mp4', '', b'', ('cannot be read', 'FILE.mp4')),
    ('FILE.mkv', '', b'no video' * 99, ('cannot be read', 'FILE.mkv')), ('a.webm', '', b'', ('cannot', 'a.webm')),
    ('FILE.jpg', '--score-thr 30', b'', ('--score-thr', 'from 0 to 1, got 30')),
    ('a.mp4', '--tile 64', b'', ('--tile is only for images', )), ('a.jpg', '--overlap 0.5', b'', ('--overlap', )),
    ('a.jpg', '--tile 0', b'', ('--tile', )), ('a.jpg', '--tile 64 --overlap 1', b'', ('--overlap', ))))
def test_what_does_not_go_together(source, options, content, words, predict, tmp_path):
    if source.endswith(('.mp4', '.mkv', '.webm')):
        pytest.importorskip('av')
    (tmp_path / f'FILE{Path(source).suffix}').write_bytes(content)
    done = predict(source, *options.split(), check=False)
    assert done.returncode == 1 and all(word in done.message for word in words) and not (tmp_path / 'out').exists()


def make_video(path, frames, codec='libx264', rate=Fraction(10), times=None, turned=0):
    """A video of the frames (H, W, 3), RGB; times are in thousandths of a second."""
    av = pytest.importorskip('av')
    options = dict(movflags='faststart') if path.suffix == '.mp4' else {}  # the index first, as cameras and sites do
    with av.open(str(path), 'w', options=options) as file:
        stream = file.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = 'yuv420p' if codec != 'mjpeg' else 'yuvj420p'
        if turned:
            stream.set_display_rotation(turned)
        if times:
            stream.codec_context.time_base = Fraction(1, 1000)
        for i, picture in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(picture, format='rgb24')
            if times:
                frame.pts, frame.time_base = times[i], Fraction(1, 1000)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    return path


def read_video(path):
    """Frames (H, W, 3), RGB, their times in seconds, and the stream."""
    import av
    with av.open(str(path)) as file:
        frames = list(file.decode(video=0))
        stream = file.streams.video[0]
        said = dict(codec=stream.codec_context.name, rate=stream.average_rate, format=stream.codec_context.pix_fmt)
    return [frame.to_ndarray(format='rgb24') for frame in frames], [frame.time for frame in frames], said


@pytest.mark.parametrize('name, codec', (('a.MP4', 'libx264'), ('a.avi', 'mjpeg')))
def test_a_video_is_predicted_frame_by_frame(name, codec, predict, trained, frames, tmp_path):
    """What is found and drawn in each frame is as in an image."""
    path = make_video(tmp_path / name, frames, codec)
    said = predict(path, '--score-thr', '0.1').stdout
    assert f'5 frames and {len(read(tmp_path))} objects (results.json)' in said
    pictures, times, said = read_video(tmp_path / 'out/a.mp4')
    assert said == dict(codec='h264', rate=Fraction(10), format='yuv420p')
    assert np.allclose(times, np.arange(5) / 10, atol=2e-3)
    model, found = xcit_dense.load(TINY_CONFIG, trained[0], threshold=0.1), read(tmp_path)
    for number, (picture, drawn) in enumerate(zip(read_video(path)[0], pictures, strict=True)):
        wanted = model(picture)
        mine = [record for record in found if record['image_id'] == number]
        assert all(abs(record['seconds'] - number / 10) < 2e-3 for record in mine)
        scores = [record['score'] for record in mine if record['score'] >= 0.1]
        assert scores == wanted.scores.tolist() and len(scores) > 0
        assert np.abs(drawn.astype(int) - wanted.draw()).mean() < np.abs(drawn.astype(int) - picture).mean()
    assert len(pictures) == 5 and {record['image_id'] for record in found} == set(range(5))
    assert 'frames' in read(tmp_path, 'classes')['image_ids']
    assert {path.name for path in (tmp_path / 'out').iterdir()} == {'a.mp4', 'results.json', 'classes.json', RECORD}


def test_times_odd_sizes_and_turns(predict, frames, tmp_path):
    times = [0, 50, 300, 310, 1000]
    predict(make_video(tmp_path / 'a.mov', [frame[:54, :] for frame in frames], times=times))
    assert np.allclose(read_video(tmp_path / 'out/a.mp4')[1], np.array(times) / 1000, atol=2e-3)
    predict(make_video(tmp_path / 'b.avi', [frame[:55, :63].copy() for frame in frames[:2]], 'mjpeg'))
    assert read_video(tmp_path / 'out/b.mp4')[0][0].shape == (56, 64, 3)
    # a camera's stream: no frame has a time
    make_video(tmp_path / 'd.h264', frames, rate=Fraction(25)).rename(tmp_path / 'd.mkv')
    predict(tmp_path / 'd.mkv')
    assert np.allclose(read_video(tmp_path / 'out/d.mp4')[1], np.arange(5) / 25, atol=2e-3)
    # a phone's is written as players show it: turned counter-clockwise by the angle of its mark
    if not hasattr(pytest.importorskip('av').video.stream.VideoStream, 'set_display_rotation'):
        pytest.skip('this PyAV writes no such marks')
    predict(make_video(tmp_path / 'c.mp4', frames[:2], turned=90), '--score-thr', '1')
    drawn = read_video(tmp_path / 'out/c.mp4')[0][0].astype(int)
    left, right = (np.abs(drawn - np.rot90(frames[0], turns)).mean() for turns in (1, -1))
    assert left < right / 2


def test_a_size_that_is_given_is_not_replaced_by_that_of_the_training(predict, frames, demo_data, tmp_path):
    for source in (demo_data / 'val2017' / NAMES[0], make_video(tmp_path / 'a.mp4', frames[:1])):
        assert 'was trained to be tested' not in predict(source, '--image-size', '48').stdout


def test_a_video_of_a_segmentor(trained_segmentor, frames, tmp_path):
    path = make_video(tmp_path / 'a.mp4', frames)
    done = run_tool('predict.py', TINY_SEG_CONFIG, trained_segmentor[0], path, '--out', tmp_path / 'out')
    assert '5 frames in ' in done.stdout and not (tmp_path / 'out/results.json').exists()
    assert len(read_video(tmp_path / 'out/a.mp4')[0]) == 5


def test_a_video_that_breaks_off(predict, frames, tmp_path):
    path = make_video(tmp_path / 'a.mp4', frames * 3, 'mjpeg')
    data = path.read_bytes()
    path.write_bytes(data[:len(data) * 2 // 3].ljust(len(data), b'\0'))  # as a download that stopped
    done, count = predict(path, check=False), len(read_video(tmp_path / 'out/a.mp4')[0])
    assert done.returncode == 1 and f'a.mp4 breaks off after {count} frames' in done.message
    assert 0 < count < 15 and {record['image_id'] for record in read(tmp_path)} == set(range(count))


@pytest.mark.parametrize('error, code', ((KeyboardInterrupt, 130), (OSError(28, 'No space left'), 1)))
def test_a_video_that_is_stopped_leaves_nothing(error, code, predict, frames, tmp_path, monkeypatch):
    path = make_video(tmp_path / 'a.mp4', frames)
    monkeypatch.setattr(Drawing, 'draw', Mock(side_effect=[frames[0], frames[0], error, *frames]))
    assert predict(path, check=False).returncode == code and not (tmp_path / 'out').exists()


def test_a_video_overwrites_nothing(predict, frames, tmp_path, monkeypatch):
    path = make_video(tmp_path / 'a.mp4', frames)
    before = path.read_bytes()
    (tmp_path / 'out').mkdir()
    (tmp_path / 'out/a.mp4').write_text('mine')
    for options, words in ((('--out', tmp_path), 'holds the video'), ((), '--overwrite')):
        done = predict(path, *options, check=False)
        assert done.returncode == 1 and words in done.message
    assert path.read_bytes() == before and (tmp_path / 'out/a.mp4').read_text() == 'mine'
    monkeypatch.setitem(sys.modules, 'av', None)
    done = predict('a.mp4', check=False)
    assert done.returncode == 1 and 'pip install av' in done.message and len(done.message.splitlines()) == 1
