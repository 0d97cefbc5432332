"""Classes out of the data, and data that is not there."""
import json
import shutil

import pytest

from helpers.paths import MAIN_CONFIG, SMALL_CONFIG
from xcit_dense import get_config
from xcit_dense.config.loading import load_config
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.datasets import check_data
from xcit_dense.errors import DataError


def test_missing_data_is_one_error_with_the_layout(tmp_path):
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/instances_train2017.json').touch()
    cfg = load_config(MAIN_CONFIG, data_root=tmp_path)
    with pytest.raises(DataError) as caught:
        check_data(cfg)
    text = str(caught.value)
    assert f'found    {tmp_path}/annotations/instances_train2017.json' in text
    for part in ('annotations/instances_val2017.json', 'train2017', 'val2017'):
        assert f'missing  {tmp_path}/{part}' in text
    assert '--data-root' in text


def test_classes_come_from_the_data(demo_data):
    cfg = load_config(SMALL_CONFIG, data_root=demo_data)
    take_classes(cfg)
    classes = ('disc', 'square', 'triangle', 'star', 'cross')
    assert cfg.model.roi_head.bbox_head.num_classes == cfg.model.roi_head.mask_head.num_classes == 5
    assert cfg.val_dataloader.dataset.metainfo.classes == classes
    assert len(set(map(tuple, cfg.val_dataloader.dataset.metainfo.palette))) == 5


def test_classes_keep_the_order_of_the_file_as_mmdet_does(demo_data, tmp_path):
    (tmp_path / 'annotations').mkdir()
    content = json.loads((demo_data / 'annotations/instances_train2017.json').read_text())
    content['categories'].reverse()
    (tmp_path / 'annotations/instances_train2017.json').write_text(json.dumps(content))
    cfg = load_config(SMALL_CONFIG, data_root=tmp_path)
    assert classes_of_data(cfg.train_dataloader.dataset) == dict(
        classes=('cross', 'star', 'triangle', 'square', 'disc'), category_ids=(5, 4, 3, 2, 1))


@pytest.mark.parametrize('change', (lambda c: c.reverse(), lambda c: c.pop(), lambda c: c[0].update(id=9)))
def test_categories_in_another_order_are_refused(change, demo_data, tmp_path):
    """mmdet counts the categories of each file by themselves: another order scores the wrong classes."""
    shutil.copytree(demo_data / 'annotations', tmp_path / 'annotations')
    path = tmp_path / 'annotations/instances_val2017.json'
    content = json.loads(path.read_text())
    change(content['categories'])
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=f'{path} has other classes than the training data, or another order'):
        take_classes(load_config(SMALL_CONFIG, data_root=tmp_path))


def test_classes_of_a_checkpoint_are_compared_with_the_data(demo_data):
    cfg = load_config(SMALL_CONFIG, data_root=demo_data)
    checkpoint = dict(meta=dict(dataset_meta=dict(classes=('square', 'disc', 'triangle', 'star', 'cross'))))
    with pytest.raises(DataError, match=r'other classes than run\.pth'):
        take_classes(cfg, checkpoint, 'run.pth', loaders=['test_dataloader'])
    take_classes(cfg, checkpoint, 'run.pth', loaders=[])
    assert cfg.test_dataloader.dataset.metainfo.classes[0] == 'square'


def test_config_by_name_takes_its_classes_from_the_data(demo_data):
    assert get_config('maskrcnn_xcit_n12_p16_small', data_root=demo_data).model.roi_head.bbox_head.num_classes == 5


def test_empty_folders_are_named(tmp_path):
    for part in ('images', 'annotations'):
        for split in ('training', 'validation'):
            (tmp_path / part / split).mkdir(parents=True)
    with pytest.raises(DataError, match=f'empty    {tmp_path}/images/training'):
        check_data(load_config('semfpn_xcit_n12_p16_ade20k', data_root=tmp_path))


def test_file_that_is_no_coco_file(demo_data, tmp_path):
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/instances_train2017.json').write_text(json.dumps([1, 2]))
    with pytest.raises(DataError, match='instances_train2017.json is no COCO'):
        take_classes(load_config(SMALL_CONFIG, data_root=tmp_path))
