"""Which data sets a config has, where they lie, and which images are there."""
from pathlib import Path

import pytest
from mmengine.config import Config

from xcit_dense.data.classes import heads_of_classes, palette_of, set_classes
from xcit_dense.data.datasets import LOADERS, check_data, datasets, find_images, folder_of, setting_of, type_of
from xcit_dense.data.files import read_class_list
from xcit_dense.errors import DataError
from xcit_dense.for_mmseg import ImageFolderDataset


def test_data_sets_inside_others_are_found():
    def inner(name):
        return dict(type='CocoDataset', ann_file=name)

    cfg = Config(dict(
        train_dataloader=dict(dataset=dict(type='RepeatDataset', dataset=dict(
            type='ConcatDataset', datasets=[inner('a'), dict(type='RepeatDataset', dataset=inner('b'))]))),
        val_dataloader=dict(dataset=inner('c')), test_dataloader=None))
    assert [d.ann_file for d in datasets(cfg, LOADERS)] == ['c', 'a', 'b']
    assert [d.ann_file for d in datasets(cfg, LOADERS[:1])] == ['a', 'b'] and datasets(cfg, LOADERS[2:]) == []


def test_images_are_found_in_order_below_a_folder(tmp_path):
    (tmp_path / 'deep.png').mkdir()
    (tmp_path / 'deep.png/z.JPG').touch()
    for name in ('c.webp', 'a.tif', 'b.tiff', 'd.bmp', 'e.jpeg', 'f.PNG', 'x.gif', 'y.txt', 'png'):
        (tmp_path / name).touch()
    (tmp_path / 'deep.png').rename(tmp_path / 'deep')
    folder, found = find_images(tmp_path)
    assert folder == tmp_path and [p.relative_to(tmp_path).as_posix() for p in found] == [
        'a.tif', 'b.tiff', 'c.webp', 'd.bmp', 'deep/z.JPG', 'e.jpeg', 'f.PNG']
    assert find_images(tmp_path / 'y.txt') == (tmp_path, [tmp_path / 'y.txt'])  # what is named is taken
    (tmp_path / 'none').mkdir()
    for place, word in (('none', 'png'), ('not_there', 'not_there')):
        with pytest.raises(DataError, match=word):
            find_images(tmp_path / place)


def test_missing_and_empty_are_told_apart(tmp_path):
    """Of the loaders asked for alone; with all there, nothing is said."""
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full/a').touch()

    def dataset(folder, **more):
        return dict(dataset=dict(type='CocoDataset', data_root=str(tmp_path), data_prefix=dict(img=folder), **more))

    cfg = Config(dict(train_dataloader=dataset('full', ann_file='none.json'), val_dataloader=dataset('full'),
                      test_dataloader=dataset('empty')))
    check_data(cfg, ['val_dataloader'])
    with pytest.raises(DataError) as caught:
        check_data(cfg)
    states = {Path(path).name: state for state, path in (
        line.split() for line in str(caught.value).splitlines() if line.startswith('  '))}
    assert states == {'none.json': 'missing', 'full': 'found', 'empty': 'empty'}


def test_settings_are_those_of_the_config_then_of_the_class():
    ade = dict(type='ADE20KDataset', data_prefix=dict(seg_map_path='x'))
    assert setting_of(ade, 'reduce_zero_label', False) is True
    assert setting_of(dict(ade, reduce_zero_label=False), 'reduce_zero_label', True) is False
    assert setting_of(dict(ade, seg_map_suffix=None), 'seg_map_suffix', 'y') is None
    assert setting_of(ade, 'none_has_this', 5) == 5 and setting_of(dict(type='NoSuchDataset'), 'img_suffix', 5) == 5
    assert type_of(dict(type=int)) is int and type_of(dict(type='NoSuchDataset')) is None
    assert type_of(dict(type='ImageFolderDataset')) is ImageFolderDataset
    # the same name in both frameworks: what has label maps is mmseg's
    kinds = [type_of(dict(type='ADE20KPanopticDataset')), type_of(dict(type='CityscapesDataset')),
             type_of(dict(type='CityscapesDataset', data_prefix=dict(seg_map_path='x')))]
    assert [kind.__module__.split('.')[0] for kind in kinds] == ['mmdet', 'mmdet', 'mmseg']


def test_folders_are_below_the_root():
    assert folder_of(dict(data_root='a', data_prefix=dict(img='b')), 'img') == Path('a/b')
    assert folder_of(dict(data_root='a', data_prefix=dict(img='/b')), 'img') == Path('/b')
    assert folder_of(dict(data_root=None, data_prefix=None), 'img') == Path('.')
    assert folder_of(dict(data_root='~/a'), 'img') == Path.home() / 'a'


def test_classes_reach_heads_and_data_sets():
    dataset = dict(type='CocoDataset', metainfo=dict(old=1))
    cfg = Config(dict(
        model=dict(backbone=dict(num_classes=1), rpn_head=dict(num_classes=1), num_classes=7, roi_head=dict(bbox_head=[
            dict(type='A', num_classes=7), dict(type='B', num_classes=7, inner=dict(num_classes=7))])),
        **{loader: dict(dataset=dict(dataset)) for loader in LOADERS}))
    set_classes(cfg, ['a', 'background', 'c'], category_ids=(9, 0, 4))
    assert [head['num_classes'] for head in heads_of_classes(cfg.model)] == [3] * 4
    assert cfg.model.backbone.num_classes == cfg.model.rpn_head.num_classes == 1
    for loader in LOADERS:
        meta = cfg[loader].dataset.metainfo
        assert set(meta) == {'classes', 'palette', 'category_ids'} and meta.category_ids == (9, 0, 4)
        assert meta.classes == ('a', 'background', 'c') and meta.palette == palette_of(meta.classes)


def test_colours_of_classes():
    """Red, then about green-blue; in RGB; the background is grey wherever it stands, and takes no other's colour."""
    palette = palette_of(['a', 'background', 'c'])
    assert palette[0] == (242, 36, 36) and palette[1] == (90, 90, 90) and palette == [
        palette_of(['a'])[0], (90, 90, 90), palette_of('xyz')[2]]
    many = palette_of([str(i) for i in range(150)])
    assert len(set(many)) == 150 and all(0 <= value <= 255 for colour in many for value in colour)
    assert all(sum(abs(x - y) for x, y in zip(a, b, strict=True)) > 100 for a, b in zip(many, many[1:], strict=False))


def test_names_in_a_list_are_lines(tmp_path):
    path = tmp_path / 'classes.txt'
    assert read_class_list(path) is None
    path.write_text('\n  sky \ntraffic light\r\nsea\n\n')
    assert read_class_list(path) == ('sky', 'traffic light', 'sea')
