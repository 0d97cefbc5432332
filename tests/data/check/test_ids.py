"""Ids that are no places: with gaps, unordered, from 0 on, large, or texts."""
import json

import pytest
from mmdet.datasets import CocoDataset

from helpers.faulty_data import ANNOTATIONS, coco, only, rewrite
from helpers.paths import SMALL_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import check_data_set, drop_findings
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.demo import CLASSES

IDS = dict(gaps=(1, 3, 4, 90, 91), unordered=(5, 1, 4, 2, 3), from_0=(0, 1, 2, 3, 4), large=(10**12, 7, 0, 2**40, 30),
           texts=('b', 'a', '10', '9', ''))
by_ids = pytest.mark.parametrize('ids', IDS.values(), ids=IDS)


def renumbered(root, ids):
    """Give the categories other ids, in the order of their names, and the images and annotations too."""
    content = json.loads((root / ANNOTATIONS).read_text())
    category = dict(zip((c['id'] for c in content['categories']), ids, strict=True))
    image = {row['id']: 1000 - 37 * place for place, row in enumerate(content['images'])}
    for row in content['categories']:
        row['id'] = category[row['id']]
    for row in content['images']:
        row['id'] = image[row['id']]
    for place, row in enumerate(content['annotations']):
        row.update(id=(place * 7919) % 10007, image_id=image[row['image_id']],
                   category_id=category[row['category_id']])
    (root / ANNOTATIONS).write_text(json.dumps(content))
    return content


@by_ids
def test_ids_are_no_places(root, ids):
    """Counts, drawn objects and classes do not depend on the ids."""
    before = check_data_set(coco(root))
    content = renumbered(root, ids)
    report = check_data_set(coco(root))
    assert report.findings == [] and report.counts == before.counts and report.classes == before.classes
    assert [name for name, *_ in report.classes] == list(CLASSES)
    assert len({amount for *_, amount in report.classes}) > 1  # exchanged classes would show
    drawn = [[(a['name'], a['bbox']) for a in sample['annotations']] for sample in report.samples]
    assert drawn == [[(a['name'], a['bbox']) for a in sample['annotations']] for sample in before.samples]
    assert sum(map(len, drawn)) == len(content['annotations'])
    cfg = load_config(SMALL_CONFIG, data_root=root)
    assert classes_of_data(cfg.train_dataloader.dataset) == dict(classes=CLASSES, category_ids=ids)


@by_ids
def test_classes_from_data_keep_the_ids(root, ids):
    renumbered(root, ids)
    (root / 'annotations/instances_val2017.json').write_bytes((root / ANNOTATIONS).read_bytes())
    cfg = load_config(SMALL_CONFIG, data_root=root)
    take_classes(cfg)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert tuple(loader.dataset.metainfo.category_ids) == ids and loader.dataset.metainfo.classes == CLASSES


def test_labels_are_those_of_mmdet(root):
    """The check counts for each name what mmdet reads for its ids."""
    renumbered(root, IDS['large'])
    report = check_data_set(coco(root))
    options = coco(root, pipeline=[])
    options.pop('type')
    dataset = CocoDataset(**options)
    labels = [instance['bbox_label'] for i in range(len(dataset)) for instance in dataset.get_data_info(i)['instances']]
    assert [labels.count(label) for label in range(5)] == [amount for *_, amount in report.classes]
    assert dataset.cat_ids == list(IDS['large'])


@pytest.mark.parametrize('place', (0, 2, 4))
def test_findings_name_records_by_their_ids(root, place):
    """The row is the place in the file, the id what the file says; each finding has those of its own record."""
    content = renumbered(root, IDS['large'])
    record = content['annotations'][place]
    rewrite(root, lambda c: c['annotations'][place].update(category_id=5))
    finding, = only(check_data_set(coco(root)), 'unknown-category')
    assert (finding.part, finding.row, finding.id, finding.value) == ('annotations', place, record['id'], '5')
    rewrite(root, lambda c: c['images'][place].update(file_name='none.jpg'))
    finding = next(f for f in check_data_set(coco(root)).findings if f.kind == 'image-missing')
    assert (finding.part, finding.row, finding.id) == ('images', place, content['images'][place]['id'])


def test_dropping_goes_by_place_and_takes_along_what_belongs_to_an_image(root, tmp_path):
    content = renumbered(root, IDS['unordered'])
    rewrite(root, lambda c: c['images'][2].update(width=0))
    drop_findings(check_data_set(coco(root)), tmp_path / 'clean')
    kept = json.loads((tmp_path / 'clean/instances_train2017.json').read_text())
    gone = content['images'][2]['id']
    assert [i['id'] for i in kept['images']] == [i['id'] for i in content['images'] if i['id'] != gone]
    assert kept['annotations'] == [a for a in content['annotations'] if a['image_id'] != gone]
    assert kept['categories'] == content['categories'] and kept['info'] == content['info']
