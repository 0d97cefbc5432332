"""Images without labels: which images of a folder are used, and how the log says so."""
import os
import shutil

import numpy as np
import pytest
from mmengine import fileio
from mmengine.config import Config
from PIL import Image

from xcit_dense.data.check import check_data_set, drop_findings
from xcit_dense.data.layouts import DataOptions, place_data
from xcit_dense.data.unlabelled import UnlabelledImages, UnlabelledSource
from xcit_dense.errors import ConfigError, DataError


def photo(path, mode='RGB'):
    """Write an image with many values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(map(ord, str(path.name)))
    image = Image.fromarray(np.random.RandomState(seed).randint(0, 256, (40, 50, 3), np.uint8))
    image.convert(mode).save(path)


def label_map(path, colours=False, bits=8):
    """Write an image with three values."""
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = np.arange(2000).reshape(40, 50) // 800
    if colours:
        labels = np.array([(128, 64, 128), (70, 70, 70), (0, 0, 142)], np.uint8)[labels]
    Image.fromarray(labels.astype(np.uint16 if bits == 16 else np.uint8)).save(path)


def used(root, **options):
    """Return the images that a data set uses, relative to the folder."""
    data = UnlabelledImages(data_root=str(root), pipeline=[], **options)
    return sorted(os.path.relpath(data.get_data_info(i)['img_path'], root) for i in range(len(data)))


def config(root, **options):
    return Config(dict(train_dataloader=dict(dataset=dict(
        type='UnlabelledImages', data_root=str(root), left_out=None, pipeline=[dict(type='LoadImageFromFile')],
        **options))))


def test_all_images_of_a_flat_and_a_nested_folder_are_used_and_other_files_are_not(tmp_path):
    root = tmp_path / 'images'
    names = ['a.JPG', 'b.png', 'dog/c.Jpeg', 'dog/deep/er/d.webp', 'cat/b.png', 'e.tif', 'f.ppm', 'masks of cats/g.png']
    for name in names:
        photo(root / name)
    for name in ('notes.txt', 'dog/data.json', '.hidden.png', '.thumbnails/a.png'):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b'')
    assert used(root) == sorted(names)


def test_links_to_folders_and_files_are_followed_but_not_in_circles(tmp_path):
    photo(tmp_path / 'elsewhere/a.png')
    photo(tmp_path / 'b.png')
    root = tmp_path / 'images'
    (root / 'sub').mkdir(parents=True)
    (root / 'linked').symlink_to(tmp_path / 'elsewhere')
    (root / 'b.png').symlink_to(tmp_path / 'b.png')
    (root / 'sub/back').symlink_to(root)
    assert used(root) == ['b.png', 'linked/a.png']


LAYOUTS = dict(
    coco=(['train2017/1.jpg', 'train2017/2.jpg', 'unlabeled2017/3.jpg'],
          ['val2017/4.jpg', 'test2017/5.jpg', 'annotations/stuff_train2017/1.png', 'stuffthingmaps/train2017/2.png']),
    ade20k=(['images/training/1.jpg'], ['images/validation/2.jpg', 'annotations/training/1.png',
                                        'annotations/validation/2.png']),
    voc=(['JPEGImages/1.jpg', 'JPEGImages/2.jpg'], ['SegmentationClass/1.png', 'SegmentationObject/1.png']),
    cityscapes=(['leftImg8bit/train/bonn/b_1_leftImg8bit.png'],
                ['leftImg8bit/val/ulm/u_1_leftImg8bit.png', 'gtFine/train/bonn/b_1_gtFine_color.png',
                 'gtFine/train/bonn/b_1_gtFine_labelIds.png', 'gtCoarse/train/bonn/b_1_gtCoarse_color.png']),
    beside=(['1.png', '2.png', 'sub/3.jpg'], ['1_mask.png', '2_mask.png', 'sub/3_label.png']),
    class_folders=(['train/dog/1.png', 'train/train/1.png'], ['val/dog/1.png', 'test/train/1.png']),
    years=(['train2014/1.png'], ['val2014/1.png', 'test2015/1.png']),
    no_training_part=(['val/dog/1.png', 'test/cat/1.png'], []),
    no_parts=(['train station/1.jpg', 'val thorens/2.jpg', 'lab/test tubes/3.jpg', 'rockets/test/4.jpg',
               'train/5.jpg'], []),
    only_maps=(['annotations/1.png', 'annotations/2.png'], []),
    faces=(['mask/1.png', 'no_mask/2.png', 'labels/wine.png', 'target/board.jpg', 'gt/car.png'], []))


def is_map(name):
    return any(word in name.lower() for word in ('annotations', 'gtfine', 'gtcoarse', 'stuffthing', 'segm', '_mask.png',
                                                 '_label.png'))


def write(root, names):
    for name in names:
        if is_map(name):
            label_map(root / name, 'color' in name, 16 if 'SegmentationObject' in name else 8)
        else:
            photo(root / name)


@pytest.mark.parametrize('layout', LAYOUTS)
def test_label_maps_and_images_for_validation_are_left_out(tmp_path, layout):
    kept, left_out = LAYOUTS[layout]
    write(tmp_path, [*kept, *left_out])
    assert used(tmp_path) == sorted(kept)
    assert used(tmp_path, left_out=[]) == sorted([*kept, *left_out])


def test_a_label_map_may_differ_from_its_image_in_the_suffix_alone(tmp_path):
    for name in ('1.jpg', '2.jpg', 'sub/3.jpg', 'other/4.png'):
        photo(tmp_path / name)
    for name in ('sub/3.png', 'sub/5.png'):
        label_map(tmp_path / name)
    assert used(tmp_path) == ['1.jpg', '2.jpg', 'other/4.png', 'sub/3.jpg']
    shutil.rmtree(tmp_path / 'other')
    label_map(tmp_path / '1.png')
    assert used(tmp_path) == ['1.jpg', '2.jpg', 'sub/3.jpg']


@pytest.mark.parametrize('names', (
    ['labels/1.jpg', 'labels/wine/2.png', 'labels/3.png'], ['a/1.jpg', 'a/1.png', 'a/2.png'],
    ['1.png', '1_2.png', 'sub/scan_2.png'], [f'album{i}/1.png' for i in range(20)]))
def test_no_photograph_is_left_out_with_the_label_maps_of_its_folder(tmp_path, names):
    """The third image of each is a photograph that the pattern of the second would match."""
    for name in names:
        photo(tmp_path / name)
    label_map(tmp_path / names[1])
    assert used(tmp_path) == sorted(names)


def test_drawings_and_scans_with_few_values_are_images_unless_they_belong_to_others(tmp_path):
    names = ['a/1.png', 'a/2.png', 'b/1.png', 'b/2.png', 'c.png']
    for name in names:
        label_map(tmp_path / name)
    assert used(tmp_path) == names
    photo(tmp_path / 'photos/1.jpg')
    assert used(tmp_path) == [*names, 'photos/1.jpg']  # 2.png is of none
    photo(tmp_path / 'photos/2.jpg')
    assert used(tmp_path) == ['c.png', 'photos/1.jpg', 'photos/2.jpg']
    for name in ('photos/1.jpg', 'photos/2.jpg'):
        Image.open(tmp_path / name).resize((60, 40)).save(tmp_path / name)
    assert used(tmp_path) == [*names, 'photos/1.jpg', 'photos/2.jpg']


def test_the_log_of_a_placed_config_names_what_is_left_out_and_the_config_keeps_it(tmp_path, capsys):
    write(tmp_path, [name for names in LAYOUTS['ade20k'] for name in names])
    cfg = config(tmp_path)
    place_data(cfg, tmp_path, DataOptions(), tmp_path / 'made')
    text = capsys.readouterr().out
    assert '1 image, images in .' in text and 'label maps (annotations/*.png)' in text
    assert '3 of 4 images are left out: ' in text
    assert 'images for validation (images/validation/*)' in text and '--train-images' in text
    dataset = cfg.train_dataloader.dataset
    assert set(dataset.left_out) == {'annotations/*.png', 'images/validation/*'}
    label_map(tmp_path / 'later/1.png')  # decided once
    assert len(UnlabelledSource(dataset).images()) == 2


def test_a_folder_can_be_chosen_and_other_options_have_no_effect(tmp_path):
    write(tmp_path, [name for names in LAYOUTS['ade20k'] for name in names])
    cfg = config(tmp_path)
    place_data(cfg, tmp_path, DataOptions(train_images='images/validation'), tmp_path / 'made')
    assert [path for path, _ in UnlabelledSource(cfg.train_dataloader.dataset).images()] == [
        str(tmp_path / 'images/validation/2.jpg')]
    with pytest.raises(ConfigError, match='--val-images has no effect'):
        place_data(config(tmp_path), tmp_path, DataOptions(val_images='images'), tmp_path / 'made')
    with pytest.raises(DataError, match='--train-images nowhere: there is no folder'):
        place_data(config(tmp_path), tmp_path, DataOptions(train_images='nowhere'), tmp_path / 'made')


def test_a_list_decides_alone(tmp_path):
    write(tmp_path, ['masks/1.jpg', '1.jpg', '2.jpg'])
    (tmp_path / 'list.txt').write_text('masks/1.jpg\n2.jpg\n')
    assert used(tmp_path, ann_file='list.txt') == ['2.jpg', 'masks/1.jpg']


def test_a_folder_without_images_is_an_error_that_names_it_the_suffixes_and_the_mend(tmp_path):
    (tmp_path / 'a.heic').write_bytes(b'')
    for find in (lambda: used(tmp_path),
                 lambda: place_data(config(tmp_path), tmp_path, DataOptions(), tmp_path / 'made')):
        with pytest.raises(DataError, match=rf'{tmp_path} has no images below it: looked for \.jpg, .*--data-root DIR'):
            find()


def test_the_check_finds_broken_images_and_images_of_other_formats(tmp_path):
    for mode, name in (('RGB', 'a.jpg'), ('L', 'grey.png'), ('RGBA', 'alpha.png'), ('CMYK', 'print.jpg')):
        photo(tmp_path / name, mode)
    photo(tmp_path / 'b.gif')
    (tmp_path / 'deep.png').parent.mkdir(exist_ok=True)
    Image.fromarray(np.random.RandomState(0).randint(0, 1 << 16, (40, 50)).astype(np.uint16)).save(
        tmp_path / 'deep.png')
    (tmp_path / 'broken.jpg').write_bytes(b'no image')
    (tmp_path / 'cut.png').write_bytes((tmp_path / 'a.jpg').read_bytes()[:500])
    (tmp_path / 'gone.png').symlink_to(tmp_path / 'nowhere.png')
    (tmp_path / 'data.json').write_text('{}')
    report = check_data_set(config(tmp_path).train_dataloader.dataset, use_cache=False)
    found = {(finding.kind, os.path.basename(finding.file)) for finding in report.findings}
    assert found == {('image-unreadable', 'broken.jpg'), ('image-unreadable', 'cut.png'),
                     ('image-left-out', 'gone.png'), ('files-left-out', tmp_path.name)}
    assert report.counts['images'] == 8
    assert 'gone.png' not in used(tmp_path)  # a training would stop there


def test_a_list_without_the_broken_images_is_used_as_it_is_also_beside_class_folders(tmp_path):
    root = tmp_path / 'data'
    write(root, ['train/dog/1.png', 'train/cat/2.png'])
    (root / 'train/dog/broken.jpg').write_bytes(b'no image')
    _, file = drop_findings(check_data_set(config(root).train_dataloader.dataset, use_cache=False), tmp_path, False)
    cfg = config(root, ann_file=str(file))
    place_data(cfg, root, DataOptions(), tmp_path / 'made')
    assert used(root, ann_file=cfg.train_dataloader.dataset.ann_file) == ['train/cat/2.png', 'train/dog/1.png']


def test_images_elsewhere_are_listed_and_read_through_their_backend(tmp_path):
    write(tmp_path, [name for names in LAYOUTS['ade20k'] for name in names])

    class Shelf(fileio.BaseStorageBackend):
        def get(self, filepath):
            return (tmp_path / filepath.removeprefix('shelf://data/')).read_bytes()

        def get_text(self, filepath, encoding='utf-8'):
            return self.get(filepath).decode(encoding)

        def join_path(self, *parts):
            return '/'.join(part.rstrip('/') for part in parts)

        def list_dir_or_file(self, dir_path, *options):
            return fileio.LocalBackend().list_dir_or_file(tmp_path / dir_path.removeprefix('shelf://data/'), *options)

    fileio.register_backend('shelf', Shelf, force=True, prefixes='shelf')
    try:
        data = UnlabelledImages(data_root='shelf://data/', pipeline=[dict(type='LoadImageFromFile')])
        assert [record['img_path'] for record in map(data.get_data_info, range(len(data)))] == [
            'shelf://data/images/training/1.jpg']
        assert data[0]['img'].shape == (40, 50, 3)
        report = check_data_set(config('shelf://data/').train_dataloader.dataset, use_cache=False)
        assert {finding.kind for finding in report.findings} == {'not-checked'}
    finally:
        for known in (fileio.backends.backends, fileio.backends.prefix_to_backends):
            known.pop('shelf')
        fileio.io.backend_instances.clear()
