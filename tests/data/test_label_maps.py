"""Label maps as the check and the classes read them: the two agree."""
import numpy as np
import pytest
from mmseg.datasets.transforms import LoadAnnotations
from PIL import Image

from helpers.faulty_data import coco, folders, kinds_of, only, to_hdr
from xcit_dense.data.check import check_data_set
from xcit_dense.data.classes import classes_of_data
from xcit_dense.data.label_maps import LabelMaps
from xcit_dense.errors import DataError


class Tens(LoadAnnotations):
    """A user's step: the labels are the tens in the files."""


def test_label_maps_that_a_step_of_the_user_reads_are_not_judged_and_need_names(root):
    for path in (root / 'annotations/training').iterdir():
        Image.fromarray(np.asarray(Image.open(path)) * 10).save(path)
    own = folders(root, pipeline=[dict(type='LoadImageFromFile'), dict(type=Tens)])
    assert check_data_set(own).findings == [] and len(classes_of_data(own)['classes']) == 6
    assert check_data_set(dict(own, pipeline=own['pipeline'][:1])).findings == []  # nothing reads them
    standard = dict(own, pipeline=[dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')])
    only(check_data_set(standard), 'map-labels')
    with pytest.raises(DataError, match='has the label'):
        classes_of_data(standard)
    (root / 'classes.txt').unlink()
    with pytest.raises(DataError, match='read by a step of your own, .*classes.txt'):
        classes_of_data(own)


@pytest.mark.parametrize('listed', (False, True))
def test_without_the_label_zero_classes_begin_at_one(tmp_path, listed, capfd):
    for folder, pixel in (('images/training', (1, 2, 3)), ('annotations/training', None)):
        (tmp_path / folder).mkdir(parents=True)
        Image.new('RGB', (8, 8), pixel).save(tmp_path / folder / 'a.png')
    labels = np.arange(64, dtype=np.uint8).reshape(8, 8) % 4
    Image.fromarray(labels).save(tmp_path / 'annotations/training/a.png')
    names = ('1', '2', '3')
    if listed:
        (tmp_path / 'classes.txt').write_text('\n'.join(names))
    dataset = folders(tmp_path, reduce_zero_label=True, metainfo={})
    report = check_data_set(dataset)
    assert report.findings == [] and [name for name, *_ in report.classes][:3] == list(names)
    capfd.readouterr()
    assert classes_of_data(dataset)['classes'] == names
    assert ('(void, border), --ignore-label LABEL' in ''.join(capfd.readouterr())) != listed
    Image.fromarray(labels + 1).save(tmp_path / 'annotations/training/a.png')
    if listed:
        assert kinds_of(check_data_set(dataset)) == {'map-labels'}
        with pytest.raises(DataError, match='has the label 4, but the 3 classes have the labels 1 to 3'):
            classes_of_data(dataset)


def test_what_is_ignored(root):
    """By the data set's own label, and by a label of the heads, which they see after the pipeline."""
    for zero in (False, True):
        ignored = LabelMaps(folders(root, reduce_zero_label=zero, ignore_index=200), [77]).ignored
        assert ignored == ({200, 255, 78, 0} if zero else {200, 255, 77})


def test_images_that_opencv_reads_and_pillow_does_not(root):
    """In an annotation file and in folders."""
    to_hdr(root / 'train2017', root)
    to_hdr(root / 'images/training')
    steps = [dict(type='LoadImageFromFile', color_type='unchanged'), dict(type='LoadAnnotations', with_mask=True)]
    dataset = coco(root, pipeline=steps)
    assert check_data_set(dataset).findings == []
    (root / 'train2017/000000000003.hdr').write_bytes(b'bad')
    only(check_data_set(dataset), 'image-unreadable')
    folder = folders(root, type='BaseSegDataset', img_suffix='.hdr', pipeline=[steps[0], dict(type='LoadAnnotations')])
    only(check_data_set(folder), 'image-left-out')  # the others
