"""The attention tool as a user runs it."""
import shutil

import cv2
import numpy as np
import pytest

from helpers.tools import files_in, run_tool
from xcit_dense._utils.files import RECORD
from xcit_dense.predict import attention


@pytest.fixture
def images(tmp_path):
    (tmp_path / 'images/deep').mkdir(parents=True)
    for name, size in (('a.jpg', (40, 64)), ('deep/b.png', (70, 33))):
        cv2.imwrite(str(tmp_path / 'images' / name), np.random.default_rng(0).integers(0, 255, (*size, 3), np.uint8))
    return tmp_path / 'images'


ALL = {'a.png', 'a.npz', 'deep/b.png', 'deep/b.npz', RECORD}


def test_it_goes_on_past_broken_images_and_names_them(classifier, images, tmp_path):
    (images / '0.jpg').write_bytes(b'no image')
    (images / 'link.jpg').symlink_to('nowhere')
    done = run_tool('attention.py', classifier, images, '--out', tmp_path / 'out', check=False)
    assert done.returncode == 1 and '2 of 4 images' in done.message and files_in(tmp_path / 'out').keys() == ALL
    lines = done.message.splitlines()[1:]
    assert [line.split(' cannot be read: ')[0].strip() for line in lines] == [
        str(images / '0.jpg'), str(images / 'link.jpg')]
    assert 'not an image' in lines[0] and 'OpenCV' not in done.message
    run_tool('attention.py', classifier, images / 'a.jpg', '--out', tmp_path / 'one', '--show', 'components', '--block',
             2, '--size', 32)
    arrays = np.load(tmp_path / 'one/a.npz')
    assert arrays['components'].shape == (1, 2, 4, 3) and arrays['blocks'] == [2]


@pytest.mark.parametrize('arguments, words', (
    ('absent.pth images', 'no file'), ('small_12_p8_dinn images', 'did you mean small_12_p8_dino'),
    ('FILE absent', 'no image or folder'), ('FILE empty', 'no image in'), ('FILE images --block 3', '1 to 2'),
    ('FILE images --config absent', 'absent'), ('images/a.jpg images', 'a.jpg'),
    ('FILE images --out images', 'another folder'), ('FILE twice', 'differ only in their suffix')))
def test_mistakes(arguments, words, classifier, images, tmp_path):
    (tmp_path / 'empty').mkdir()
    shutil.copytree(images, tmp_path / 'twice')
    shutil.copy(images / 'a.jpg', tmp_path / 'twice/a.png')
    before = files_in(tmp_path)
    done = run_tool('attention.py', '--out', 'out', *arguments.replace('FILE', str(classifier)).split(), cwd=tmp_path,
                    check=False)
    assert done.returncode == 1 and done.message.startswith('error: ') and words in done.message
    assert files_in(tmp_path) == before


def test_ctrl_c_keeps_what_is_done(classifier, images, tmp_path, monkeypatch):
    draw = attention.draw_panels

    def interrupted(image, rows, note, file):
        if image.shape[:2] == (70, 33):
            file.write_bytes(b'half of it')
            raise KeyboardInterrupt
        draw(image, rows, note, file)

    monkeypatch.setattr(attention, 'draw_panels', interrupted)
    done = run_tool('attention.py', classifier, images, '--out', tmp_path / 'out', check=False)
    assert done.returncode == 130 and 'stopped' in done.stdout
    assert files_in(tmp_path / 'out').keys() == {'a.png', 'a.npz', RECORD}  # and no half of the other
    monkeypatch.undo()
    done = run_tool('attention.py', classifier, images, '--out', tmp_path / 'out')  # they are its own
    assert '2 pictures' in done.stdout and files_in(tmp_path / 'out').keys() == ALL
    assert np.load(tmp_path / 'out/deep/b.npz')['attention'].shape == (2, 4, 5, 3)
