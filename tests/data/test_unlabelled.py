"""Images without labels: which images of a folder are used, how the log says so, and the views that DINO compares."""
import os
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import only
from xcit_dense.annotations import DataOptions, place_data
from xcit_dense.data.batches import split_by_size
from xcit_dense.data.check.check import check_data_set
from xcit_dense.data.unlabelled import MultiCrop, UnlabelledImages, UnlabelledSource
from xcit_dense.errors import ConfigError, DataError


def photo(path, mode='RGB'):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(sum(map(ord, path.name))).randint(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)


def write(root, names):
    for name in names:
        photo(root / name)


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
    names = ['a.JPG', 'b.png', 'dog/c.Jpeg', 'dog/deep/er/d.webp', 'cat/b.png', 'f.ppm', 'masks of cats/g.png']
    write(root, names)
    for name in ('notes.txt', 'dog/data.json', '.hidden.png', '.thumbnails/a.png'):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b'')
    assert used(root) == sorted(names)


LAYOUTS = dict(
    coco=(['train2017/1.jpg', 'train2017/2.jpg', 'unlabeled2017/3.jpg'],
          ['val2014/4.jpg', 'test2017/5.jpg', 'annotations/stuff_train2017/1.png', 'stuffthingmaps/train2017/2.png']),
    ade20k=(['images/training/1.jpg'], ['images/validation/2.jpg', 'annotations/training/1.png',
                                        'annotations/validation/2.png']),
    voc=(['JPEGImages/1.jpg'], ['SegmentationClass/1.png', 'SegmentationObject/1.png']),
    cityscapes=(['leftImg8bit/train/bonn/b_1_leftImg8bit.png'],
                ['leftImg8bit/val/ulm/u_1_leftImg8bit.png', 'gtFine/train/bonn/b_1_gtFine_color.png',
                 'gtFine/train/bonn/b_1_gtFine_labelIds.png', 'gtCoarse/train/bonn/b_1_gtCoarse_color.png']),
    beside=(['1.png', '2.png', 'sub/3.jpg'], ['1_mask.png', '2_mask.png', 'sub/3_label.png']),
    class_folders=(['train/dog/1.png', 'train/train/1.png'], ['val/dog/1.png', 'test/train/1.png']),
    no_training_part=(['val/dog/1.png', 'test/cat/1.png'], []),
    no_parts=(['train station/1.jpg', 'val thorens/2.jpg', 'lab/test tubes/3.jpg', 'rockets/test/4.jpg',
               'train/5.jpg'], []),
    only_maps=(['annotations/1.png', 'annotations/2.png'], []),
    faces=(['no_mask/2.png', 'target/board.jpg', 'masks of cats/3.png'], ['mask/1.png']))


@pytest.mark.parametrize('layout', LAYOUTS)
def test_label_maps_and_images_for_validation_are_left_out(tmp_path, layout):
    kept, left_out = LAYOUTS[layout]
    write(tmp_path, [*kept, *left_out])
    assert used(tmp_path) == sorted(kept) and used(tmp_path, left_out=[]) == sorted([*kept, *left_out])


def test_the_log_of_a_placed_config_names_what_is_left_out_and_the_config_keeps_it(tmp_path, capsys):
    write(tmp_path, [name for names in LAYOUTS['ade20k'] for name in names])
    cfg = config(tmp_path)
    place_data(cfg, tmp_path, DataOptions(), tmp_path / 'made')
    text = capsys.readouterr().out
    assert all(words in text for words in ('1 image, images in .', '3 of 4 images are left out: ', '--train-images',
                                           'annotations/*.png (label maps), images/validation/* (images for val'))
    dataset = cfg.train_dataloader.dataset
    assert set(dataset.left_out) == {'annotations/*.png', 'images/validation/*'}
    photo(tmp_path / 'later/1_mask.png')  # decided once
    assert len(UnlabelledSource(dataset).images()) == 2
    place_data(cfg := config(tmp_path), tmp_path, DataOptions(train_images='images/validation'), tmp_path / 'made')
    assert UnlabelledSource(cfg.train_dataloader.dataset).images() == [(f'{tmp_path}/images/validation/2.jpg', None)]
    for options, error, words in ((dict(val_images='images'), ConfigError, '--val-images has no effect'),
                                  (dict(train_images='nowhere'), DataError, '--train-images nowhere: there is no fol')):
        with pytest.raises(error, match=words):
            place_data(config(tmp_path), tmp_path, DataOptions(**options), tmp_path / 'made')


def test_a_list_decides_alone_also_beside_class_folders(tmp_path):
    write(tmp_path, ['masks/1.jpg', '1.jpg', '2.jpg'])
    (tmp_path / 'list.txt').write_text('masks/1.jpg\n2.jpg\n')
    assert used(tmp_path, ann_file='list.txt') == ['2.jpg', 'masks/1.jpg']
    root = tmp_path / 'data'
    write(root, ['train/dog/1.png'])
    (root / 'train/dog/broken.jpg').write_bytes(b'no image')
    (tmp_path / 'sound.txt').write_text('train/dog/1.png\n')
    cfg = config(root, ann_file=str(tmp_path / 'sound.txt'))
    place_data(cfg, root, DataOptions(), tmp_path / 'made')
    assert used(root, ann_file=cfg.train_dataloader.dataset.ann_file) == ['train/dog/1.png']


def test_the_check_finds_broken_images_and_images_of_other_formats(tmp_path):
    for mode, name in (('RGB', 'a.jpg'), ('L', 'b.gif'), ('RGBA', 'alpha.png'), ('CMYK', 'print.jpg')):
        photo(tmp_path / name, mode)
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
    assert report.counts['images'] == 7
    assert 'gone.png' not in used(tmp_path)  # a training would stop there


def test_a_folder_without_images_or_on_no_disk_is_an_error_with_the_mend(tmp_path):
    (tmp_path / 'a.heic').write_bytes(b'')
    for find in (lambda: used(tmp_path),
                 lambda: place_data(config(tmp_path), tmp_path, DataOptions(), tmp_path / 'made')):
        with pytest.raises(DataError, match=rf'{tmp_path} has no images below it: looked for \.jpg, .*--data-root DIR'):
            find()
    with pytest.raises(DataError, match='on a disk, not s3://data/: mount or copy them, and set --data-root DIR'):
        used('s3://data/')
    only(check_data_set(config('s3://data/').train_dataloader.dataset, use_cache=False), 'not-checked')


def test_global_views_come_first_and_keep_more_of_the_image():
    step = MultiCrop(global_size=48, local_size=16, num_local=3, global_ratio=(0.9, 1.), local_ratio=(0.01, 0.02))
    ramp = np.linspace(0, 255, 100).astype(np.uint8)[None, :, None].repeat(100, 0).repeat(3, 2)
    spreads = []
    for _ in range(20):
        views = step(dict(img=ramp))['img']
        assert [view.shape for view in views] == [(48, 48, 3)] * 2 + [(16, 16, 3)] * 3 and views[0].dtype == np.uint8
        spreads.append([float(np.ptp(view)) for view in views])
    assert np.mean(spreads, 0)[:2].min() > 2 * np.mean(spreads, 0)[2:].max()
    assert [len(view) for view in MultiCrop()(dict(img=ramp))['img']] == [224] * 2 + [96] * 10
    with pytest.raises(ConfigError, match='num_local of MultiCrop must be at least 0, got -1'):
        MultiCrop(num_local=-1)


def test_a_batch_is_predicted_by_the_sizes_of_its_images():
    images = [torch.zeros(3, *size) for size in ((30, 40), (33, 64), (32, 64), (30, 65))]
    model = SimpleNamespace(data_preprocessor=SimpleNamespace(pad_size_divisor=32))
    assert [places for places, _ in split_by_size(model, dict(inputs=images))] == [[0, 2], [1], [3]]


def test_the_views_see_the_channels_in_the_order_of_pil_and_return_them_in_that_of_opencv():
    """Grey, saturation and hue weigh the channels differently."""
    image, step = np.random.RandomState(0).randint(0, 256, (40, 40, 3), np.uint8), MultiCrop(32, 16, 6)
    torch.manual_seed(0)
    found = step(dict(img=image))['img']
    torch.manual_seed(0)
    wanted = [np.asarray(view(Image.fromarray(image[..., ::-1].copy()))) for view in step.views]
    assert all(map(np.array_equal, found, (view[..., ::-1] for view in wanted)))


def test_some_views_are_grey_some_keep_their_colour_and_some_second_ones_are_solarised():
    torch.manual_seed(0)
    step = MultiCrop(8, 8, 1)
    colours, greys = (np.array([step(dict(img=np.full((16, 16, 3), colour, np.uint8)))['img'] for _ in range(200)])[
        :, :, 0, 0].astype(int) for colour in ((40, 90, 160), (200, 200, 200)))
    is_grey, is_same = np.ptp(colours, axis=-1) == 0, (colours == (40, 90, 160)).all(-1)
    assert (abs(is_grey.mean(0) - 0.2) < 0.1).all() and (abs(is_same.mean(0) - 0.2 * 0.8) < 0.1).all()
    solarised = (greys < 110).all(-1)  # the other changes keep it above 0.6 * 200
    assert 0.1 < solarised[:, 1].mean() < 0.3 and not solarised[:, ::2].any()


def test_the_first_view_is_blurred_others_sometimes_and_without_blurs_none_is_blurred_or_solarised():
    noise = np.random.RandomState(0).randint(0, 256, (64, 64, 3), np.uint8)

    def views(blurs, picture):
        torch.manual_seed(1)
        step = MultiCrop(64, 64, 1, global_ratio=(1., 1.), local_ratio=(1., 1.), blurs=blurs)
        return np.array([step(dict(img=picture))['img'] for _ in range(60)], float)

    plain, blurred = (np.abs(np.diff(found, axis=3)).mean((2, 3, 4)) / found.std((2, 3)).mean(2)  # of any contrast
                      for found in (views(blurs, noise) for blurs in (False, True)))
    shares = (blurred < 0.9 * plain.min()).mean(0)
    assert plain.min() > 0.9 * plain.max() and shares[0] > 0.75 and 0 < shares[1] < 0.25 < shares[2] < 0.65
    darkest = [views(blurs, np.full_like(noise, 255))[:, 1].min() for blurs in (False, True)]  # only where solarised
    assert darkest[1] < 50 < 100 < darkest[0]
