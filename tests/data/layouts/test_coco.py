"""Exports in COCO format: how mmdet reads those of each tool, with categories and names fixed."""
import json
import shutil
from pathlib import Path

import pytest

from helpers import exports
from helpers.placing import detector, numbers, placed, read
from xcit_dense.data.check import check_data_set
from xcit_dense.data.classes import classes_of_data
from xcit_dense.data.layouts.source import Source, without_parents
from xcit_dense.errors import DataError

NAMES = 'disc', 'square', 'triangle'
DIVIDED = dict(train=(5, 15), val=(1, 3), test=(1, 3))
WITHOUT_TEST = dict(train=(6, 18), val=(6, 18), test=(6, 18))


@pytest.fixture
def folder(tmp_path):
    return tmp_path / 'run/data'


def files_in(root):
    return {path: path.read_bytes() for path in root.rglob('*') if path.is_file()}


@pytest.mark.parametrize('make, options, wanted, name', (
    (exports.roboflow, {}, dict(train=(8, 24), val=(4, 12), test=(2, 6)), 'Roboflow'),
    (exports.roboflow, dict(test=0), dict(train=(8, 24), val=(4, 12), test=(4, 12)), 'Roboflow'),
    (exports.roboflow, dict(valid=0, test=0), dict(train=(6, 18), val=(2, 6), test=(2, 6)), 'Roboflow'),
    (exports.roboflow, dict(valid=0), dict(train=(6, 18), val=(2, 6), test=(2, 6)), 'Roboflow'),
    (exports.cvat, {}, DIVIDED, 'CVAT'),
    (exports.cvat, dict(parts=('Train', 'Validation')), WITHOUT_TEST, 'CVAT'),
    (exports.cvat, dict(parts=('Train', 'Val', 'Test'), folders=False), WITHOUT_TEST, 'CVAT'),
    (exports.cvat, dict(folders=False), DIVIDED, 'CVAT'),
    (exports.label_studio, {}, DIVIDED, 'Label Studio'),
    (exports.label_studio, dict(named='images\\{:03d}.jpg'), DIVIDED, 'Label Studio'),
    (exports.label_studio, dict(named='../../media/upload/1/0123abcd-{:03d}.jpg'), DIVIDED, 'Label Studio'),
    (exports.fiftyone, {}, DIVIDED, 'FiftyOne'),
    (exports.fiftyone, dict(parts=('train', 'validation')), WITHOUT_TEST, 'FiftyOne'),
    (exports.one_file, {}, dict(train=(10, 30), val=(2, 6), test=(2, 6)), 'COCO'),
    (exports.one_file, dict(folder='.', file='x.json'), dict(train=(10, 30), val=(2, 6), test=(2, 6)), 'COCO'),
    (exports.one_file, dict(folder='photos/b', file='notes/a.json'), dict(train=(10, 30), val=(2, 6), test=(2, 6)),
     'COCO'),
))
def test_exports(make, options, wanted, name, folder, tmp_path, capfd):
    root = make(tmp_path / 'data', **options)
    before = files_in(root)
    cfg = placed(root, folder)
    assert numbers(cfg) == (wanted, NAMES)
    said = capfd.readouterr().out
    assert said.count(f'data        {name}') == 1 and '3: disc, square, triangle' in said
    assert all(f'{words}' in said for words in ('training  ', 'validation  ', 'test  '))
    assert files_in(root) == before


def test_a_folder_in_a_folder(folder, tmp_path):
    """As archives are unpacked."""
    exports.roboflow(tmp_path / 'data/export.v1')
    assert numbers(placed(tmp_path / 'data', folder))[0]['train'] == (8, 24)
    exports.yolo(tmp_path / 'other/export.v1')
    assert numbers(placed(tmp_path / 'other', folder))[0]['train'] == (8, 24)


def test_data_that_lies_where_the_config_says_is_left_as_it_is(demo_data, folder, capfd):
    before = placed(demo_data, folder).to_dict()
    assert before == detector(demo_data).to_dict() and not folder.exists()
    assert 'training' in capfd.readouterr().out


def test_what_lacks_in_the_layout_of_coco_is_made_up_for(root, folder):
    (root / 'annotations/instances_val2017.json').unlink()
    cfg = placed(root, folder)
    assert cfg.train_dataloader.dataset.data_prefix.img == 'train2017'
    assert sum(len(data) for part, data in read(cfg).items() if part != 'test') == 6


def test_the_empty_parent_of_roboflow_is_no_class(folder, tmp_path, capfd):
    """Neither in training nor in validation; ids of categories are those of the export."""
    root = exports.roboflow(tmp_path / 'data', parent='things')
    cfg = placed(root, folder)
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        assert classes_of_data(cfg[loader].dataset) == dict(classes=NAMES, category_ids=(1, 2, 3))
    assert "without the category 'things'" in capfd.readouterr().out
    report = check_data_set(cfg.val_dataloader.dataset, from_data=True, use_cache=False)
    assert [finding.kind for finding in report.findings] == []  # no class of the name twice, no id 0 either


@pytest.mark.parametrize('parent, kept', (
    ('disc', NAMES),  # a project that is called as one of its classes
    (None, NAMES)))
def test_other_parents(parent, kept, folder, tmp_path):
    cfg = placed(exports.roboflow(tmp_path / 'data', parent=parent), folder)
    assert classes_of_data(cfg.train_dataloader.dataset)['classes'] == kept


def test_a_parent_with_objects_in_one_part_is_a_class_in_all(folder, tmp_path):
    root = exports.roboflow(tmp_path / 'data')
    file = root / exports.ROBOFLOW['valid']
    content = json.loads(file.read_text())
    content['annotations'][0]['category_id'] = 0
    file.write_text(json.dumps(content))
    cfg = placed(root, folder)
    assert classes_of_data(cfg.train_dataloader.dataset)['classes'] == ('shapes', *NAMES)


def test_classes_of_a_config_are_not_thinned(folder, tmp_path):
    """Without classes_from_data the config says which count."""
    root = exports.roboflow(tmp_path / 'data')
    cfg = placed(root, folder, detector(root, classes_from_data=False))
    assert classes_of_data(cfg.train_dataloader.dataset)['classes'] == ('shapes', *NAMES)


def test_objects_that_are_judged_have_ids_from_1(folder, tmp_path):
    """pycocotools takes an object with the id 0 for none."""
    found = read(placed(exports.roboflow(tmp_path / 'data', parent=None), folder))
    ids = [annotation['id'] for annotation in json.loads(Path(found['val'].ann_file).read_text())['annotations']]
    assert ids == list(range(1, 13))
    assert Path(found['train'].ann_file).parent.name == 'train'  # which needs no copy


def test_other_files_of_coco_are_no_second_annotations(root, folder):
    shutil.copy(root / 'annotations/instances_train2017.json', root / 'annotations/person_keypoints_train2017.json')
    for name in ('captions_train2017', 'panoptic_train2017', 'image_info_test2017'):
        (root / f'annotations/{name}.json').write_text('{"images": [], "annotations": []}')
    (root / 'val2017').rename(root / 'val')
    shutil.rmtree(root / 'images')
    cfg = placed(root, folder)
    assert cfg.val_dataloader.dataset.data_prefix.img == 'val' and len(read(cfg)['train']) == 6


def test_nothing_that_is_known_is_left_to_the_framework(folder, tmp_path):
    (tmp_path / 'data').mkdir()
    (tmp_path / 'data/notes.json').write_text('{}')
    assert placed(tmp_path / 'data', folder).to_dict() == detector(tmp_path / 'data').to_dict()


def test_a_damaged_export_is_named(folder, tmp_path):
    root = exports.roboflow(tmp_path / 'data')
    (root / exports.ROBOFLOW['valid']).write_text('{"images": [')
    with pytest.raises(DataError, match='valid/_annotations.coco.json cannot be read'):
        placed(root, folder)


@pytest.mark.parametrize('change', (
    lambda content: content['annotations'][0].update(category_id=[1]),
    lambda content: content['categories'][0].update(supercategory=dict(a=1)),
    lambda content: content['images'][0].pop('id'),
    lambda content: content['images'].append(None),
    lambda content: content.pop('categories')))
def test_what_is_no_annotation_file(change, folder, tmp_path):
    root = exports.one_file(tmp_path / 'data')
    content = json.loads((root / 'annotations.json').read_text())
    change(content)
    (root / 'annotations.json').write_text(json.dumps(content))
    assert placed(root, folder).to_dict() == detector(root).to_dict()
    with pytest.raises(DataError, match='--train-annotations'):
        placed(root, folder, train_annotations='annotations.json')


def test_annotations_without_images_are_left_to_the_check_of_the_data(root, folder):
    """Where the config says."""
    for name in ('train2017', 'val2017', 'images'):
        shutil.rmtree(root / name)
    cfg = placed(root, folder)
    assert cfg.train_dataloader.dataset.ann_file == 'annotations/instances_train2017.json'
    assert cfg.train_dataloader.dataset.data_prefix.img == 'train2017' and not folder.exists()


def test_a_class_without_objects_that_stands_above_itself_alone_stays():
    """As some of COCO's."""
    categories = [dict(id=1, name='person', supercategory='person'), dict(id=2, name='cat', supercategory='animal')]
    source = Source(Path('a.json'), dict(annotations=[dict(category_id=2)], categories=categories), Path())
    assert without_parents([source], Path()) == [] and source.content['categories'] == categories and not source.changed
