"""Folders of images and label maps as they come: the right pairs, labels and names, and nothing written into them."""
import os
import re
import shutil

import numpy as np
import pytest
from annotations.placing import segmentor
from PIL import Image

from helpers import exports_segmentation as exports
from helpers.exports_segmentation import found
from helpers.paths import TINY_SEG_CONFIG
from helpers.tools import files_in
from xcit_dense.annotations.pairs import match
from xcit_dense.annotations.types import PARTS
from xcit_dense.config.loading import load_config
from xcit_dense.data.datasets import LOADERS, check_data
from xcit_dense.errors import ConfigError, DataError


def images_and_masks(root):
    return exports.pairs(root, 'images', 'masks', exports.names(10))


def below(root, images, maps, **options):
    for first, part in ((0, 'train'), (100, 'val')):
        exports.pairs(root, f'{images}'.format(part), f'{maps}'.format(part), exports.names(3, part), first, **options)
    return root


def cityscapes(root):
    below(root, 'leftImg8bit/{}/town', 'gtFine/{}/town', label='_gtFine_labelIds.png')
    for path in root.glob('leftImg8bit/*/town/*.jpg'):
        path.rename(path.with_name(f'{path.stem}_leftImg8bit.jpg'))
    for path in root.glob('gtFine/*/town/*'):
        shutil.copy(path, str(path).replace('labelIds', 'instanceIds'))
    return root


@pytest.mark.parametrize('name, layout', dict(
    camvid=(exports.camvid, 4, 2, 'train000.png', exports.CAMVID),
    camvid_colours=(exports.camvid_colours, 3, 3, 'train000.png', exports.CAMVID),
    voc=(exports.voc, 3, 2, 's000.jpg', '01234'), cvat=(exports.cvat, 4, 1, None, exports.CAMVID),
    roboflow=(exports.roboflow, 3, 2, 'train000.jpg', exports.CAMVID),
    images_masks=(images_and_masks, 8, 2, None, '01234'),
    images_train=(lambda root: below(root, 'images/{}', 'labels/{}'), 3, 3, 'train000.jpg', '01234'),
    train_images=(lambda root: below(root, '{}/images', '{}/masks', label='_mask.bmp'), 3, 3, 'train000.jpg', '01234'),
    img_dir=(lambda root: below(root, 'img_dir/{}', 'ann_dir/{}', image='.tif'), 3, 3, 'train000.tif', '01234'),
    top_and_val=(lambda root: exports.pairs(exports.pairs(root, 'images', 'masks', exports.names(3, 'train')),
                                            'val/images', 'val/masks', exports.names(2, 'val'), 100),
                 3, 2, 'train000.jpg', '01234'),
    train_masks=(lambda root: below(root, '{}', '{}_masks'), 3, 3, 'train000.jpg', '01234'),
    one_folder_deeper=(lambda root: below(root, 'Set/images/{}', 'Set/masks/{}'), 3, 3, 'train000.jpg', '01234'),
    cityscapes=(cityscapes, 3, 3, 'train000_leftImg8bit.jpg', '01234')).items())
def test_what_lies_in_a_folder_is_found(name, layout, tmp_path):
    make, train, val, image, classes = layout
    root = make(tmp_path / 'data')
    (root / '.cache/images').mkdir(parents=True)  # what is hidden counts nowhere
    before = files_in(root)
    cfg = segmentor(root, tmp_path / 'run')
    parts = {part: found(cfg, part) for part in PARTS}
    assert [len(parts[part]) for part in ('train', 'val')] == [train, val]
    assert not parts['train'].keys() & parts['val'].keys()
    assert tuple(cfg.train_dataloader.dataset.metainfo.classes) == tuple(classes)
    assert cfg.model.decode_head.num_classes == 5
    for image_name, labels in parts['train'].items():
        number = int(''.join(filter(str.isdigit, image_name.removesuffix('_leftImg8bit.jpg')[-7:])))
        assert (labels == exports.scene(number)[1]).all(), image_name
    assert image is None or image in parts['train']
    assert files_in(root) == before and (tmp_path / 'run/data/maps').exists() == (name in ('camvid_colours', 'cvat'))


def test_voc_has_its_own_names_and_the_test_part_is_taken_where_it_has_label_maps(tmp_path):
    cfg = segmentor(exports.voc(tmp_path / 'voc', 'VOCdevkit/VOC2012'), tmp_path / 'run')
    assert cfg.train_dataloader.dataset.metainfo.classes[:3] == ('background', 'aeroplane', 'bicycle')
    assert len(found(cfg)) == 3
    root = exports.voc(tmp_path / 'mine')  # in a folder of another name, without lists
    shutil.rmtree(root / 'ImageSets')
    assert len(found(segmentor(root, tmp_path / 'run'))) == 4
    root = exports.camvid(tmp_path / 'data')
    assert {name[:4] for name in found(segmentor(root, tmp_path / 'run'), 'test')} == {'test'}
    shutil.rmtree(root / 'testannot')
    assert {name[:3] for name in found(segmentor(root, tmp_path / 'run'), 'test')} == {'val'}


def test_masks_of_label_studio_become_one_label_map(tmp_path, capfd):
    root = exports.label_studio(tmp_path / 'data')
    cfg = segmentor(root, tmp_path / 'run')
    assert 'ignored 1 image without masks' in capfd.readouterr().out
    assert cfg.train_dataloader.dataset.metainfo.classes == ('background', 'car', 'pole')
    parts = {**found(cfg), **found(cfg, 'val')}
    assert sorted(parts) == [f'{name}.jpg' for name in exports.names(4)]  # without the one that nobody annotated
    for number, name in enumerate(exports.names(4)):
        labels = exports.scene(number)[1]
        assert (parts[f'{name}.jpg'] == np.select([labels == 2, labels == 3], [2, 1], 0)).all(), name
    pole = next(root.glob('masks/task-12*pole*'))
    labels = np.asarray(Image.open(pole)) // 255 * 128  # above 127 is a pole, also where another file says car
    car = exports.scene(2)[1] == 3
    labels[car], labels[0] = 255, 127
    Image.fromarray(labels).save(pole)
    again = segmentor(root, tmp_path / 'again')
    name = f'{exports.names(4)[2]}.jpg'
    labels, before = {**found(again), **found(again, 'val')}[name], parts[name]
    assert (labels == np.where(car, 2, before)).all()
    (root / 'tasks.json').unlink()
    with pytest.raises(DataError, match='no known images for 4 tasks.*JSON export'):
        segmentor(root, tmp_path / 'run')


def test_images_keep_their_part_when_others_come(tmp_path, capfd):
    root, run = images_and_masks(tmp_path / 'data'), tmp_path / 'run'
    first = found(segmentor(root, run), 'val').keys()
    said = capfd.readouterr().out
    assert 'label maps in masks, 80% of the images' in said and 'label maps in masks, 20% held out' in said
    before = files_in(run / 'data')
    other = images_and_masks(tmp_path / 'other')  # other data in the same work dir
    (other / 'images/s000.jpg').unlink()
    assert len(found(segmentor(other, run))) == 7 and before.items() < files_in(run / 'data').items()
    assert found(segmentor(root, tmp_path / 'second'), 'val').keys() == first  # by their names alone
    exports.pairs(root, 'images', 'masks', exports.names(10, 'new'), 50)
    cfg = segmentor(root, run)
    assert found(cfg, 'val').keys() >= first and len(found(cfg, 'val')) == 4
    assert len(found(cfg)) == 16 and not found(cfg).keys() & found(cfg, 'val').keys()
    assert len(found(segmentor(root, tmp_path / 'third', val_share=.5), 'val')) == 10


def test_two_kinds_of_label_maps_are_asked_for(tmp_path):
    root = images_and_masks(tmp_path / 'data')
    shutil.copytree(root / 'masks', root / 'labels')
    with pytest.raises(DataError, match=r'several ways: images \+ masks; or images \+ labels.*--train-annotations'):
        segmentor(root, tmp_path / 'run')
    cfg = segmentor(root, tmp_path / 'run', train_images='images', train_annotations='labels')
    assert cfg.train_dataloader.dataset.data_prefix.seg_map_path == 'labels' and len(found(cfg, 'val')) == 2
    for path in (root / 'masks').iterdir():
        for kind in 'xy':
            shutil.copy(path, root / 'masks' / f'{path.stem}_{kind}.png')
        path.unlink()
    shutil.rmtree(root / 'labels')
    with pytest.raises(DataError, match=r'match label maps .*: _x\.png, _y\.png(.|\n)*--train-annotations'):
        segmentor(root, tmp_path / 'run')
    exports.pairs(root, 'a', 'b', exports.names(5))
    cfg = segmentor(root, tmp_path / 'run', train_images='a', train_annotations='b')
    assert len(found(cfg)) == 4


def test_names_of_label_maps_are_those_of_images_and_one_ending(tmp_path):
    """The longest name of an image, and the ending of most of the files, then that of classes."""
    def write(*names):
        for name in names:
            exports.save(tmp_path / name, np.zeros((2, 3), np.uint8))

    write('i/a.jpg', 'i/a_b.jpg', 'm/a_labelTrainIds.png', *(f'm/{name}_{kind}.png' for name in ('a', 'a_b')
                                                            for kind in ('labelIds', 'mask', 'other')))
    pair = match(tmp_path / 'i', tmp_path / 'm')
    assert (pair.with_map, pair.suffix) == (['a.jpg', 'a_b.jpg'], '_labelIds.png')
    write('m/a_b_labelTrainIds.png', 'x/1_cam_rgb.png', 'x/2_cam_rgb.png', 'y/1.png', 'y/2.png')
    assert match(tmp_path / 'i', tmp_path / 'm').suffix == '_labelTrainIds.png'
    assert match(tmp_path / 'x', tmp_path / 'y').map_of('2_cam_rgb.png') == tmp_path / 'y/2.png'


def test_options_say_what_names_do_not(tmp_path):
    root = tmp_path / 'data'
    exports.pairs(root, 'a', 'b', exports.names(3))
    exports.pairs(tmp_path, 'c', 'd', exports.names(2, 'v'), 100)
    with pytest.raises(DataError, match=r'--train-images[\s\S]*Found in .*:\n- a: 3 .jpg\n- b: 3 .png'):
        check_data(load_config(TINY_SEG_CONFIG, data_root=root))
    with pytest.raises(DataError, match=r'Found:\n- a: 3 .jpg\n- b: 3 .png\n.*--train-images'):
        segmentor(root, tmp_path / 'run', ignore_label=(4, ))
    with pytest.raises(ConfigError, match='--train-images and --train-annotations go together'):
        segmentor(root, tmp_path / 'run', train_images='a')
    with pytest.raises(DataError, match='no file or folder .*/nowhere'):
        segmentor(root, tmp_path / 'run', train_images='a', train_annotations='nowhere')
    with pytest.raises(DataError, match='no label map in .*/a has the name of an image in .*/c'):
        segmentor(root, tmp_path / 'run', train_images=str(tmp_path / 'c'), train_annotations='a')
    cfg = segmentor(root, tmp_path / 'run', train_images='a', train_annotations='b', val_images=str(tmp_path / 'c'),
                    val_annotations='../d')
    assert [len(found(cfg, part)) for part in PARTS] == [3, 2, 2]


def test_lists_beside_the_folders_divide_them(tmp_path, capfd):
    root = images_and_masks(tmp_path / 'data')
    (root / 'valid.txt').write_text('s003.jpg\ns004.jpg\n')  # fast.ai's CamVid
    (root / 'codes.txt').write_text('\n'.join(exports.CAMVID))
    cfg = segmentor(root, tmp_path / 'run')
    assert found(cfg, 'val').keys() == {'s003.jpg', 's004.jpg'} and len(found(cfg)) == 8
    assert re.search('training +8 images.*\n.*validation +2 images.*\ntest +none; the val', ''.join(capfd.readouterr()))
    assert cfg.train_dataloader.dataset.metainfo.classes == exports.CAMVID
    (root / 'test.txt').write_text('s005.jpg\n')
    shutil.copy(root / 'images/s001.jpg', root / 'images/without_a_map.jpg')
    assert len(found(segmentor(root, tmp_path / 'run'))) == 7
    (root / 'images/without_a_map.jpg').unlink()
    (root / 'test.txt').unlink()
    (root / 'default.txt').write_text('s001\ns003\ns007\n')  # CVAT's list of all
    assert found(segmentor(root, tmp_path / 'run')).keys() == {'s001.jpg', 's007.jpg'}
    line = '/SegNet/images/s001.jpg /SegNet/masks/s001.png\n'
    for text in (line, '\ufeff' + line.replace('/', '\\')):
        (root / 'train.txt').write_text(text)
        assert found(segmentor(root, tmp_path / 'run')).keys() == {'s001.jpg'}
    for folder, suffix in (('images', '.jpg'), ('masks', '.png')):
        (root / folder / f's002{suffix}').rename(root / folder / f's 002{suffix}')
    (root / 'train.txt').write_text('s001\ns 002.jpg\ns003\ns004\ns001\n')
    (root / 'valid.txt').unlink()  # some of these are held out
    cfg = segmentor(root, tmp_path / 'run')
    assert re.search('training +3 images.*\n.*validation +1 image', ''.join(capfd.readouterr()))
    assert sorted({**found(cfg), **found(cfg, 'val')}) == ['s 002.jpg', 's001.jpg', 's003.jpg', 's004.jpg']
    (root / 'train.txt').write_text('s001\nnobody\n')
    with pytest.raises(DataError, match='train.txt lists 1 image not found in the data: nobody'):
        segmentor(root, tmp_path / 'run')


def test_where_all_lies_in_place_nothing_changes(demo_data, tmp_path):
    plain = load_config(TINY_SEG_CONFIG, pretrained=False)
    cfg = load_config(TINY_SEG_CONFIG, data_root=str(demo_data), work_dir=tmp_path, pretrained=False)
    for loader in LOADERS:
        assert cfg[loader].dataset == dict(plain[loader].dataset, data_root=str(demo_data))
    assert not os.listdir(tmp_path)


def test_a_published_config_reads_other_folders_too(tmp_path):
    """Its data set reads one suffix, and lists without them."""
    root = exports.pairs(tmp_path / 'data', 'images', 'masks', exports.names(5), image='_rgb.png', label='_mask.png')
    cfg = load_config('semfpn_xcit_n12_p16_ade20k', data_root=str(root), work_dir=tmp_path / 'run', pretrained=False)
    assert len(found(cfg)) == 4 and len(found(cfg, 'val')) == 1
    (root / 'images/s001_rgb.png').rename(root / 'images/s001_rgb.jpg')
    with pytest.raises(DataError, match='several kinds.*custom'):
        load_config('semfpn_xcit_n12_p16_ade20k', data_root=str(root), work_dir=tmp_path / 'run', pretrained=False)
