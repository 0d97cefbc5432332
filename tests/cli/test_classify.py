"""The classify tool as a user runs it."""
import json
import subprocess
import sys
from unittest.mock import DEFAULT, Mock

import cv2
import numpy as np
import pytest

from helpers.tools import environment, run_tool
from xcit_dense.predict import classifying


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / 'images'
    (folder / 'deep').mkdir(parents=True)
    for name in ('a.png', 'b.jpg', 'deep/c.png'):
        cv2.imwrite(str(folder / name), np.full((20, 30, 3), 99, np.uint8))
    return folder


def classify(*args, cwd, code=0):
    done = run_tool('classify.py', *args, '--size', 32, cwd=cwd, check=False)
    assert done.returncode == code, done.stdout
    return done.stdout, json.loads((cwd / 'classified.json').read_text())


def test_an_image_has_a_block(classifier, images, tmp_path):
    output, found = classify(classifier, images / 'a.png', '--top', 3, cwd=tmp_path)
    assert 'a.png\n   70.0%  dog\n   20.0%  cat\n    6.0%  a newt\n' in output
    assert '4 classes (names: the checkpoint); crops of 32 x 32' in output and 'image/s' not in output
    assert (found['size'], found['crop_ratio'], found['names_from']) == (32, 1, 'the checkpoint')
    image, = found['images']
    assert image['path'] == str(images / 'a.png')
    assert [guess['name'] for guess in image['top']] == ['dog', 'cat', 'a newt']
    assert image['top'][0] == dict(index=1, name='dog', probability=pytest.approx(0.7))


def test_a_folder_has_a_line_for_each(classifier, images, tmp_path):
    """A long path and a hostile name stay in their column."""
    output, found = classify(classifier, images, cwd=tmp_path)
    lines = [line for line in output.splitlines() if '70.0%' in line]
    assert lines == [f'{name:<10}   70.0%  dog  (20% cat)' for name in ('a.png', 'b.jpg', 'deep/c.png')]
    assert [len(image['top']) for image in found['images']] == [4] * 3 and found['unreadable'] == []
    (images / 'a.png').rename(images / f'{"long" * 20}.png')
    (images / 'b.jpg').rename(images / 'b\x1b[31m.jpg')
    output, _ = classify(classifier, images, cwd=tmp_path)
    assert '\x1b' not in output
    assert len({line.index('70.0%') for line in output.splitlines() if '70.0%' in line}) == 1


def test_images_that_cannot_be_read_end_nothing(classifier, images, tmp_path):
    (images / 'a.png').write_bytes(b'no image')
    output, found = classify(classifier, images, cwd=tmp_path, code=1)
    assert '1 of 3 images could not' in output and str(images / 'a.png') in output and '2 images in' in output
    assert len(found['images']) == 2 and found['unreadable'][0]['path'] == str(images / 'a.png')
    assert 'not an image' in found['unreadable'][0]['reason']


def test_what_was_done_before_ctrl_c_is_written(classifier, images, tmp_path, monkeypatch):
    read = Mock(wraps=classifying.read_picture, side_effect=[DEFAULT, DEFAULT, KeyboardInterrupt])
    monkeypatch.setattr(classifying, 'read_picture', read)
    output, found = classify(classifier, images, cwd=tmp_path, code=130)
    assert 'stopped' in output
    assert [image['path'] for image in found['images']] == [str(call.args[0]) for call in read.call_args_list[:2]]


@pytest.mark.integration
def test_without_mmpretrain(classifier, images, tmp_path):
    """Both tools that need no config, in processes that cannot import it."""
    (tmp_path / 'mmpretrain.py').write_text('raise ImportError("not there")')
    for tool, args, words in (('classify', ('--size', '32'), 'deep/c.png   70.0%  dog'),
                              ('attention', ('--size', '32', '--out', 'maps'), 'maps: 3 pictures')):
        done = subprocess.run([sys.executable, '-m', 'xcit_dense', tool, classifier, images, *args],
                              cwd=tmp_path, text=True, capture_output=True,
                              env=environment(PYTHONPATH=f'{tmp_path}:{environment()["PYTHONPATH"]}'))
        assert done.returncode == 0 and words in done.stdout, done.stderr
