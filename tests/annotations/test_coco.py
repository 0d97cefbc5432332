"""Exports in COCO format: how mmdet reads those of each tool, with categories and names fixed."""
import re
import shutil
from pathlib import Path

import pytest
from annotations import exports
from annotations.placing import detector, numbers, placed, read

from helpers.faulty_data import fields, rewrite
from helpers.tools import files_in
from xcit_dense.annotations.coco import without_parents
from xcit_dense.annotations.types import PARTS, DataOptions, Part
from xcit_dense.data.check.check import check_data_set, check_data_sets
from xcit_dense.data.classes import classes_of_data
from xcit_dense.errors import ConfigError, DataError

NAMES = 'disc', 'square', 'triangle'
DIVIDED = dict(train=(5, 15), val=(1, 3), test=(1, 3))
DIVIDED_12 = dict(train=(10, 30), val=(2, 6), test=(2, 6))
WITHOUT_TEST = dict(train=(6, 18), val=(6, 18), test=(6, 18))


@pytest.mark.parametrize('make, options, wanted', (
    (exports.roboflow, {}, dict(train=(8, 24), val=(4, 12), test=(2, 6))),
    (exports.roboflow, dict(test=0), dict(train=(8, 24), val=(4, 12), test=(4, 12))),
    (exports.roboflow, dict(valid=0), dict(train=(6, 18), val=(2, 6), test=(2, 6))),
    (exports.cvat, {}, DIVIDED), (exports.cvat, dict(parts=('Train', 'Val', 'Test'), folders=False), WITHOUT_TEST),
    (exports.label_studio, dict(named='images\\{:03d}.jpg'), DIVIDED),
    (exports.label_studio, dict(named='../../media/upload/1/0123abcd-{:03d}.jpg'), DIVIDED),
    (exports.fiftyone, {}, DIVIDED), (exports.fiftyone, dict(parts=('train', 'validation')), WITHOUT_TEST),
    (exports.one_file, dict(folder='.', file='x.json'), DIVIDED_12),
    (exports.one_file, dict(folder='photos/b', file='notes/a.json'), DIVIDED_12)))
def test_exports(make, options, wanted, folder, tmp_path, capfd):
    root = make(tmp_path / 'data', **options)
    before = files_in(root)
    cfg = placed(root, folder)
    assert numbers(cfg) == (wanted, NAMES)
    assert not any(report.errors for report in check_data_sets(cfg, use_cache=False).values())
    said = capfd.readouterr().out
    assert said.count('data        COCO in ') == 1 and '3: disc, square, triangle' in said
    for part, (images, objects) in wanted.items():
        assert re.search(rf'\n{PARTS[part]} +({images} images?, {objects} objects, |none; the validation data)', said)
    assert files_in(root) == before


def test_a_folder_in_a_folder(folder, tmp_path):
    for make in (exports.roboflow, exports.yolo):
        make(tmp_path / make.__name__ / 'export.v1')
        assert numbers(placed(tmp_path / make.__name__, folder))[0]['train'] == (8, 24)


def test_the_layout_of_the_config(root, folder, demo_data, capfd):
    """It is left as it is, and what it lacks is made up for."""
    assert placed(demo_data, folder).to_dict() == detector(demo_data).to_dict() and not folder.exists()
    assert 'training' in capfd.readouterr().out
    bare = folder.parent / 'bare'  # without images the check of the data says more
    shutil.copytree(root / 'annotations', bare / 'annotations')
    dataset = placed(bare, folder).train_dataloader.dataset
    assert dataset.ann_file == 'annotations/instances_train2017.json' and dataset.data_prefix.img == 'train2017'
    assert not folder.exists()
    # other files of COCO are no second annotations
    shutil.copy(root / 'annotations/instances_train2017.json', root / 'annotations/person_keypoints_train2017.json')
    for name in ('captions_train2017', 'panoptic_train2017', 'image_info_test2017'):
        (root / f'annotations/{name}.json').write_text('{"images": [], "annotations": []}')
    (root / 'val2017').rename(root / 'val')
    shutil.rmtree(root / 'images')
    cfg = placed(root, folder)
    assert cfg.val_dataloader.dataset.data_prefix.img == 'val' and len(read(cfg)['train']) == 6
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
    assert report.findings == []  # no class of the name twice, no id 0 either
    # without classes_from_data the config says which count; with objects in one part it is a class in all
    assert classes(placed(root, folder, detector(root, classes_from_data=False))) == ('things', *NAMES)
    rewrite(root, fields('annotations', 0, category_id=0), exports.ROBOFLOW['valid'])
    assert classes(placed(root, folder)) == ('things', *NAMES)
    (root / exports.ROBOFLOW['valid']).write_text('{"images": [')
    with pytest.raises(DataError, match='valid/_annotations.coco.json cannot be read'):
        placed(root, folder)


def objects_in(data):
    """The names and boxes of a data set of mmdet's, by the ends of the paths of the images."""
    records = [data.get_data_info(i) for i in range(len(data))]
    names = data.metainfo['classes']
    return {Path(record['img_path']).name: sorted(
        (names[one['bbox_label']], one['bbox']) for one in record['instances']) for record in records}


def test_categories_in_another_order_are_matched_by_name(root, folder, capfd):
    """The validation has other ids in another order: mmdet reads the same names and boxes as before."""
    before = objects_in(read(placed(root, folder))['val'])

    def renumber(content):
        content['categories'] = [dict(category, id=90 - category['id']) for category in content['categories'][::-1]]
        for annotation in content['annotations']:
            annotation['category_id'] = 90 - annotation['category_id']

    rewrite(root, renumber, 'annotations/instances_val2017.json')
    assert objects_in(read(placed(root, folder))['val']) == before
    said = capfd.readouterr().out
    assert 'instances_val2017.json, with the category ids of training by name' in said
    assert 'none; the validation data is used' in said  # both read one file
    # and a class without objects may be in one file only
    rewrite(root, lambda content: content['categories'].insert(0, dict(id=7, name='unused')),
            'annotations/instances_val2017.json')
    assert objects_in(read(placed(root, folder.parent / 'c'))['val']) == before
    rewrite(root, fields('annotations', 0, category_id=7), 'annotations/instances_val2017.json')  # now it has one
    dataset = placed(root, folder.parent / 'd').val_dataloader.dataset
    assert dataset.ann_file == 'annotations/instances_val2017.json'
    cfg = placed(root, folder.parent / 'b', detector(root, classes_from_data=False))
    assert cfg.to_dict() == detector(root, classes_from_data=False).to_dict()  # the config says what its classes are


def test_several_files_for_one_part(folder, tmp_path, capfd):
    """As CVAT exports its jobs: own ids, own classes, and images of the same names in other folders."""
    for job, change in ((1, lambda content: None), (2, lambda content: content['categories'].pop(0)),
                        (3, lambda content: [record.update({key: 4 - record[key]}) for part, key in (
                            ('categories', 'id'), ('annotations', 'category_id')) for record in content[part]])):
        exports.cvat(tmp_path / f'data/job{job}')
        rewrite(tmp_path / f'data/job{job}', change, 'annotations/instances_default.json')
    root, files = tmp_path / 'data', [f'job{job}/annotations/instances_default.json' for job in (1, 2, 3)]
    alone = numbers(placed(root / 'job1', folder))[0]['train'][0]
    with pytest.raises(DataError, match='--train-annotations FILE FILE'):
        placed(root, folder)
    cfg = placed(root, folder.parent / 'b', train_annotations=files, val_annotations=files[0])
    found = read(cfg)['train']
    records = [found.get_data_info(i) for i in range(len(found))]
    assert len({record['img_path'] for record in records}) == len(records) == 3 * 6 > alone
    assert {Path(record['img_path']).parents[2].name for record in records} == {'job1', 'job2', 'job3'}
    assert found.metainfo['classes'] == NAMES and 'instances_default.json, joined' in capfd.readouterr().out
    by_job = [[sorted((NAMES[one['bbox_label']], one['bbox']) for one in record['instances']) for record in records
               if f'job{job}' in record['img_path']] for job in (1, 2, 3)]
    assert by_job[0] == by_job[2]
    assert by_job[1] == [[one for one in objects if one[0] != 'disc'] for objects in by_job[0]]
    # the same images in two files are one; label maps have one folder
    again = shutil.copy(root / files[0], root / 'job1/annotations/again.json')
    rewrite(root / 'job1', lambda content: content['annotations'][0].update(  # one of another class is another object
        category_id=4 - content['annotations'][0]['category_id'] or 2), 'annotations/again.json')
    cfg = placed(root, folder.parent / 'c', train_annotations=[files[0], again], val_annotations=files[0])
    assert numbers(cfg)[0]['train'] == (6, 19)
    assert '6 images in several of them have the objects of all, equal ones once' in capfd.readouterr().out
    rewrite(root / 'job2', lambda content: [a.update(image_id=[1]) for a in content['annotations']],
            'annotations/instances_default.json')  # is left to the check of the data
    assert numbers(placed(root, folder.parent / 'd', train_annotations=files[:2], val_annotations=files[0]))[0]
    (root / 'data.yaml').touch()
    with pytest.raises(ConfigError, match='only COCO files are joined'):
        placed(root, folder.parent / 'e', train_annotations=['data.yaml', files[0]])
    with pytest.raises(ConfigError, match='--train-images takes one folder'):
        DataOptions(train_images=('job1', 'job2')).path('train', 'images', root)


def classes(cfg):
    return classes_of_data(cfg.train_dataloader.dataset)['classes']


def test_other_parents_and_ids_of_objects(folder, tmp_path):
    """A project may be called as one of its classes."""
    assert classes(placed(exports.roboflow(tmp_path / 'data', parent='disc'), folder)) == NAMES
    cfg = detector(exports.roboflow(tmp_path / 'other', parent=None))
    cfg.test_dataloader, cfg.test_evaluator = cfg.val_dataloader, cfg.val_evaluator  # one object for both
    placed(tmp_path / 'other', folder, cfg)
    assert classes(cfg) == NAMES
    for name, data in read(cfg).items():  # ids from 0, which pycocotools takes for none, are changed as it reads them
        assert Path(data.ann_file).parent.name == dict(train='train', val='valid', test='test')[name]
    # a class without objects that is its own parent stays, as some of COCO's
    categories = [dict(id=1, name='person', supercategory='person'), dict(id=2, name='cat', supercategory='animal')]
    part = Part(Path(), Path('a.json'), content=dict(annotations=[dict(category_id=2)], categories=categories))
    assert without_parents([part], Path()) == [] and part.content['categories'] == categories and not part.origin
    categories = [dict(id=1, name='a', supercategory='b'), dict(id=2, name='b', supercategory='a')]  # all without
    part = Part(Path(), Path('a.json'), content=dict(annotations=[], categories=categories))
    assert without_parents([part], Path()) == [] and part.content['categories'] == categories


def test_files_of_other_tasks_and_a_test_part_without_objects(folder, tmp_path, capfd):
    root = exports.roboflow(tmp_path / 'data')
    rewrite(root, lambda content: content['annotations'].clear(), exports.ROBOFLOW['test'])
    assert numbers(placed(root, folder))[0]['test'] == (4, 12)  # those of the validation
    assert 'has no objects, so it is not used for testing' in capfd.readouterr().out
    root = exports.one_file(tmp_path / 'other', file='train.json')
    for name in ('panoptic_train.json', 'stuff_train.json', '._train.json', '__MACOSX/train.json', '.cache/train.json',
                 *(f'one_of_each/train{i}.json' for i in range(21))):  # so many that they are of single images
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes((root / 'train.json').read_bytes())
    assert numbers(placed(root, tmp_path / 'b'))[0]['train'] == (10, 30)


@pytest.mark.parametrize('change', (
    lambda content: content['images'][0].pop('id'), lambda content: content['images'].append(None),
    lambda content: content.pop('categories'), lambda content: content.clear()))
def test_what_is_no_annotation_file_is_left_to_the_framework(change, folder, tmp_path):
    root = exports.one_file(tmp_path / 'data')
    rewrite(root, change, 'annotations.json')
    assert placed(root, folder).to_dict() == detector(root).to_dict()
    with pytest.raises(DataError, match='--train-annotations'):
        placed(root, folder, train_annotations='annotations.json')
