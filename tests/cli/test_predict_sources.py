"""What predict accepts in addition to an image and a folder: ids from a file, lists of files, videos."""
import json
import shutil
import sys
from fractions import Fraction

import cv2
import numpy as np
import pytest

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool
from xcit_dense.predict.drawing import Drawing

NAMES = [f'00000000000{i}.jpg' for i in (1, 2, 3)]


@pytest.fixture
def images(demo_data):
    return demo_data / 'val2017'


def results(folder):
    return json.loads((folder / 'results.json').read_text())


def annotations(folder, *names):
    file = folder / 'own.json'
    file.write_text(json.dumps(dict(images=[dict(file_name=name, id=70 + i) for i, name in enumerate(names)])))
    return file


@pytest.mark.parametrize('names', (NAMES, [f'some/{name}' for name in NAMES[:1]] + NAMES[1:],
                                   ['other/000000000001.jpg', *[f'val2017/{name}' for name in NAMES]]))
def test_ids_from_a_file(names, trained, images, tmp_path):
    file = annotations(tmp_path, *names)
    done = run_tool('predict.py', TINY_CONFIG, trained[0], images, '--out', tmp_path / 'out', '--ids-from', file)
    first = 70 + len(names) - 3
    assert {record['file_name']: record['image_id'] for record in results(tmp_path / 'out')} == dict(
        zip(NAMES, (first, first + 1, first + 2), strict=True))
    assert str(file) in json.loads((tmp_path / 'out/classes.json').read_text())['image_ids']
    assert str(file) in done.stdout


@pytest.mark.parametrize('names, words', (
    (NAMES[:1], ('has no id, or several, for 2 of 3 images', NAMES[1])),
    (['a/' + NAMES[0], 'b/' + NAMES[0], *NAMES[1:]], (NAMES[0], )),
    (None, ('cannot be read', 'file_name'))))
def test_ids_that_are_not_there(names, words, trained, images, tmp_path, call_tool):
    file = annotations(tmp_path, *names or ())
    if names is None:
        file.write_text('[1]')
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], images, '--out', tmp_path / 'o', '--ids-from',
                              file)
    assert code == 1 and '--ids-from' in message and all(word in message for word in words)
    assert not (tmp_path / 'o').exists()


def test_a_segmentor_has_no_ids(trained_segmentor, images, tmp_path, call_tool):
    code, message = call_tool('predict.py', TINY_SEG_CONFIG, trained_segmentor[0], images, '--out', tmp_path / 'o',
                              '--ids-from', 'x.json')
    assert code == 1 and '--ids-from' in message


@pytest.mark.parametrize('names, words', (
    (('000000000001.jpg', ), 'instances_val2017.json'), (('7.jpg', '8.jpg'), 'the numbers in the file names'),
    (('a.jpg', 'b.jpg'), 'counted from 1')))
def test_the_results_say_what_ids_are(names, words, trained, images, demo_data, tmp_path):
    source = images
    if names != (NAMES[0], ):
        source = tmp_path / 'images'
        source.mkdir()
        for name in names:
            shutil.copy(images / NAMES[0], source / name)
    run_tool('predict.py', TINY_CONFIG, trained[0], source, '--out', tmp_path / 'out', '--cfg-options',
             f'test_dataloader.dataset.data_root={demo_data}/')
    assert words in json.loads((tmp_path / 'out/classes.json').read_text())['image_ids']


def test_a_list_of_files(trained, images, tmp_path):
    """From the folder of the list, from the working one, absolute, twice; with blanks, a comment, marks of Windows."""
    shutil.copytree(images, tmp_path / 'lists/deep')
    shutil.copy(images / NAMES[0], tmp_path / 'here.jpg')
    file = tmp_path / 'lists/list.txt'
    file.write_text(f'\ufeffdeep/{NAMES[0]}\r\n\n# a comment\n here.jpg \n'
                    f'{tmp_path}/lists/deep/{NAMES[1]}\ndeep\\{NAMES[0]}\n')
    done = run_tool('predict.py', TINY_CONFIG, trained[0], 'lists/list.txt', '--out', 'out', cwd=tmp_path)
    assert '3 pictures' in done.stdout
    assert {record['file_name'] for record in results(tmp_path / 'out')} == {
        f'lists/deep/{NAMES[0]}', 'here.jpg', f'lists/deep/{NAMES[1]}'}


@pytest.mark.parametrize('text, words', ((b'a.jpg\nb.jpg\n', '2 of 2 files'), (b'\n', 'has no files'),
                                         (b'\xff\xfe\x00', 'cannot be read')))
def test_a_list_that_cannot_be(text, words, trained, tmp_path, call_tool):
    (tmp_path / 'list.txt').write_bytes(text)
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], tmp_path / 'list.txt', '--out', tmp_path / 'out')
    assert code == 1 and words in message and ('a.jpg, b.jpg' in message or text[:1] != b'a')


@pytest.mark.parametrize('name, words', ((NAMES[0], '1 picture and'), (None, 'no image')))
def test_videos_in_a_folder_are_told_of(name, words, trained, images, tmp_path):
    (tmp_path / 'in/deep').mkdir(parents=True)
    (tmp_path / 'in/deep/a.mp4').touch()
    if name:
        shutil.copy(images / name, tmp_path / 'in')
    done = run_tool('predict.py', TINY_CONFIG, trained[0], tmp_path / 'in', '--out', tmp_path / 'out', check=False)
    assert done.returncode == (name is None) and words in done.stdout and '1 video' in done.stdout
    assert 'deep/a.mp4' in done.stdout


@pytest.mark.parametrize('source, options, words', (
    ('a.mp4', ('--ids-from', 'x.json'), '--ids-from'), ('a.mp4', ('--tile', '64'), '--tile'),
    ('a.jpg', ('--overlap', '0.5'), '--overlap'), ('a.jpg', ('--tile', '0'), '--tile'),
    ('a.jpg', ('--tile', '64', '--overlap', '1'), '--overlap'), ('a.jpg', ('--frame-labels', ), '--frame-labels'),
    ('https://example.org/a.jpg', (), 'Download')))
def test_what_does_not_go_together(source, options, words, trained, tmp_path, call_tool):
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], source, '--out', tmp_path / 'out', *options)
    assert code == 1 and words in message and not (tmp_path / 'out').exists()


def make_video(path, frames, codec='libx264', rate=Fraction(10), times=None, turned=0):
    """A video of the frames (H, W, 3), RGB; times are in thousandths of a second."""
    av = pytest.importorskip('av')
    with av.open(str(path), 'w') as file:
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


@pytest.fixture
def frames(images):
    """Five frames of the demo's pictures, which move."""
    picture = cv2.imread(str(images / NAMES[0]))[..., ::-1]
    return [np.ascontiguousarray(np.roll(picture, 4 * i, 1)) for i in range(5)]


@pytest.mark.parametrize('suffix, codec', (('.mp4', 'libx264'), ('.avi', 'mjpeg'), ('.mov', 'libx264'),
                                           ('.mkv', 'libx264'), ('.webm', 'libvpx-vp9'), ('.MP4', 'libx264')))
def test_a_video_of_any_kind(suffix, codec, trained, frames, tmp_path):
    path = make_video(tmp_path / f'a{suffix}', frames, codec)
    done = run_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', tmp_path / 'out', '--score-thr', '0.1')
    assert '5 frames and ' in done.stdout
    pictures, times, said = read_video(tmp_path / 'out/a.mp4')
    assert len(pictures) == 5 and pictures[0].shape == frames[0].shape
    assert said == dict(codec='h264', rate=Fraction(10), format='yuv420p')
    assert np.allclose(times, np.arange(5) / 10, atol=2e-3)
    found = results(tmp_path / 'out')
    assert {record['image_id'] for record in found} == set(range(5))
    assert all(abs(record['seconds'] - record['image_id'] / 10) < 2e-3 for record in found)
    assert 'frames' in json.loads((tmp_path / 'out/classes.json').read_text())['image_ids']
    assert {p.name for p in (tmp_path / 'out').iterdir()} == {'a.mp4', 'results.json', 'classes.json',
                                                              '.made_by_xcit_dense.json'}


def test_what_is_found_is_that_of_the_frames(trained, frames, tmp_path):
    """Frame by frame as an image, and drawn."""
    import xcit_dense
    path = make_video(tmp_path / 'a.mkv', frames, 'libx264')
    decoded = read_video(path)[0]
    run_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', tmp_path / 'out', '--score-thr', '0.1')
    model, found = xcit_dense.load(TINY_CONFIG, trained[0], threshold=0.1), results(tmp_path / 'out')
    for number, (picture, drawn) in enumerate(zip(decoded, read_video(tmp_path / 'out/a.mp4')[0], strict=True)):
        wanted = model(picture)
        mine = [record for record in found if record['image_id'] == number and record['score'] >= 0.1]
        assert [record['score'] for record in mine] == wanted.scores.tolist() and len(mine) > 0
        assert np.abs(drawn.astype(int) - wanted.draw()).mean() < np.abs(drawn.astype(int) - picture).mean()


def test_times_and_odd_sizes_and_turns(trained, frames, tmp_path):
    times = [0, 50, 300, 310, 1000]
    path = make_video(tmp_path / 'a.mkv', [frame[:54, :] for frame in frames], times=times)
    out = tmp_path / 'out'
    run_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', out)
    assert np.allclose(read_video(out / 'a.mp4')[1], np.array(times) / 1000, atol=2e-3)
    odd = make_video(tmp_path / 'b.avi', [frame[:55, :63].copy() for frame in frames], 'mjpeg')
    run_tool('predict.py', TINY_CONFIG, trained[0], odd, '--out', out)
    assert read_video(out / 'b.mp4')[0][0].shape == (56, 64, 3)


def test_a_video_that_a_phone_has_turned(trained, frames, tmp_path):
    """It is seen, and written, as players show it: counter-clockwise by the angle of its mark."""
    av = pytest.importorskip('av')
    if not hasattr(av.video.stream.VideoStream, 'set_display_rotation'):
        pytest.skip('this PyAV writes no such marks')
    path = make_video(tmp_path / 'a.mp4', frames, turned=90)
    run_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', tmp_path / 'out', '--score-thr', '1')
    drawn = read_video(tmp_path / 'out/a.mp4')[0][0].astype(int)
    left, right = (np.abs(drawn - np.rot90(frames[0], turns)).mean() for turns in (1, -1))
    assert left < right / 2


@pytest.mark.parametrize('option', ((), ('--frame-labels', )))
def test_a_video_of_a_segmentor(option, trained_segmentor, frames, tmp_path):
    path = make_video(tmp_path / 'a.mp4', frames)
    for _ in range(2):  # its own files again
        done = run_tool('predict.py', TINY_SEG_CONFIG, trained_segmentor[0], path, '--out', tmp_path / 'out', *option)
    assert '5 frames in ' in done.stdout and not (tmp_path / 'out/results.json').exists()
    maps = sorted((tmp_path / 'out').rglob('*.png'))
    assert [file.name for file in maps] == [f'{i:06}.png' for i in range(5 if option else 0)]
    assert all(cv2.imread(str(file), cv2.IMREAD_UNCHANGED).shape == frames[0].shape[:2] for file in maps)


def test_frame_labels_of_a_detector(trained, frames, tmp_path, call_tool):
    path = make_video(tmp_path / 'a.mp4', frames)
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', tmp_path / 'out', '--frame-labels')
    assert code == 1 and '--frame-labels' in message and not (tmp_path / 'out').exists()


@pytest.mark.parametrize('data, words', ((b'', 'cannot be read'), (b'no video' * 99, 'cannot be read'),
                                         (None, 'no video')))
def test_what_is_no_video(data, words, trained, tmp_path, call_tool):
    pytest.importorskip('av')
    if data is not None:
        (tmp_path / 'a.mp4').write_bytes(data)
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], tmp_path / 'a.mp4', '--out', tmp_path / 'out')
    assert code == 1 and words in message and 'a.mp4' in message and not (tmp_path / 'out').exists()


def test_a_video_that_breaks_off(trained, frames, tmp_path, call_tool):
    path = make_video(tmp_path / 'a.avi', frames * 3, 'mjpeg')
    data = path.read_bytes()
    path.write_bytes(data[:len(data) * 2 // 3])
    out = tmp_path / 'out'
    call_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', out)
    pictures = read_video(out / 'a.mp4')[0]
    assert 0 < len(pictures) < 15 and {record['image_id'] for record in results(out)} == set(range(len(pictures)))


@pytest.mark.parametrize('error', (KeyboardInterrupt, OSError(28, 'No space left')))
def test_a_video_that_is_stopped_leaves_nothing(error, trained, frames, tmp_path, monkeypatch, call_tool):
    path, drawn = make_video(tmp_path / 'a.mp4', frames), []

    def draw(self, *args, **kwargs):
        drawn.append(1)
        if len(drawn) == 3:
            raise error
        return frames[0]

    monkeypatch.setattr(Drawing, 'draw', draw)
    code, _ = call_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', tmp_path / 'out')
    assert code == (130 if error is KeyboardInterrupt else 1) and not (tmp_path / 'out').exists()


def test_a_video_overwrites_nothing(trained, frames, tmp_path, call_tool):
    path = make_video(tmp_path / 'a.mp4', frames)
    before = path.read_bytes()
    for out, words in ((tmp_path, 'holds the video'), (tmp_path / 'out', '--overwrite')):
        (tmp_path / 'out').mkdir(exist_ok=True)
        (tmp_path / 'out/a.mp4').write_text('mine')
        code, message = call_tool('predict.py', TINY_CONFIG, trained[0], path, '--out', out)
        assert code == 1 and words in message
    assert path.read_bytes() == before and (tmp_path / 'out/a.mp4').read_text() == 'mine'


def test_without_pyav_the_command_is_named(trained, tmp_path, monkeypatch, call_tool):
    monkeypatch.setitem(sys.modules, 'av', None)
    code, message = call_tool('predict.py', TINY_CONFIG, trained[0], tmp_path / 'a.mp4', '--out', tmp_path / 'out')
    assert code == 1 and 'pip install av' in message and len(message.splitlines()) == 1
