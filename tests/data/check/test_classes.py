"""Classes of the data against those of the config and the heads; ids that are no places."""
import pytest
from mmdet.datasets import CocoDataset
from mmengine.config import Config

from helpers.faulty_data import ANNOTATIONS, coco, fields, folders, only, rewrite
from helpers.paths import SMALL_CONFIG, TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check.agreement import check_classes, check_names
from xcit_dense.data.check.check import check_data_set
from xcit_dense.data.classes import classes_of_data, take_classes
from xcit_dense.data.datasets import check_data
from xcit_dense.data.demo import CLASSES
from xcit_dense.draw import class_colours
from xcit_dense.errors import DataError

IDS = dict(gaps=(1, 3, 4, 90, 91), large=(10**12, 7, 0, 2**40, 30), texts=('b', 'a', '10', '9', ''),
           floats=(2., 1., 3., 4., 5.))


def test_classes_are_matched_by_name(root):
    rewrite(root, fields('categories', 0, name='Disk'))
    report = check_data_set(coco(root))
    (error, ), (warning, ) = report.errors, report.warnings
    assert error.value.startswith('1 of the 5 classes') and error.value.endswith("'disc' (it has 'Disk')")
    assert warning.value.startswith('1 class ') and warning.value.endswith(": 'Disk'")
    assert check_data_set(coco(root, metainfo={}), from_data=True).findings == []
    many, = check_data_set(coco(root, metainfo={})).errors  # the data set's own are COCO's
    assert many.value.startswith('80 of the 80 classes') and many.value.endswith(
        ": 'person', 'bicycle', 'car', 'motorcycle', 'airplane' and 75 more")
    order = check_data_set(coco(root, metainfo=dict(classes=('Disk', 'triangle', 'square', 'star', 'cross'))))
    assert "class 1 is 'square', not 'triangle'" in only(order, 'class-order')[0].sentence
    rewrite(root, fields('categories', 0, name='disC'))
    error, = check_data_set(coco(root, metainfo=dict(classes=('DISc', *CLASSES[1:])))).errors
    assert error.kind == 'class-missing' and error.value.endswith("'DISc' (it has 'disC')")  # only the case differs
    for names, count in (('ab', 0), ('a', 1), ('axyz', 0), ('xyz', 2)):  # names that decide nothing, of classes abc
        assert len(check_names('a.txt', 'abc', names, spelt=True)) == count, names


def test_classes_of_label_maps(root):
    names = ('background', *CLASSES)
    only(check_data_set(folders(root, metainfo=dict(classes=(*names[:-2], names[-1], names[-2])))), 'class-order')
    (root / 'classes.txt').write_text('sky\nsky\n')
    only(check_data_set(folders(root)), 'class-list')
    (root / 'classes.txt').unlink()
    report = check_data_set(folders(root, metainfo={}), from_data=True)
    assert report.findings == [] and [name for name, *_ in report.classes] == list('012345')
    ade = folders(root, type='ADE20KDataset', reduce_zero_label=True, metainfo=dict(classes=('wall', 'bilding')))
    assert "'bilding' (it has 'building')" in only(check_data_set(ade), 'class-missing')[0].sentence


def test_config_without_prefixes_and_names(root):
    assert check_data_set(coco(root, metainfo=None), from_data=True).findings == []
    bare = dict(type='ImageFolderDataset', data_root=str(root / 'images'), data_prefix=None, metainfo=None)
    report = check_data_set(bare)
    assert report.findings == [] and report.counts['images'] > 6
    check_data(Config(dict(train_dataloader=dict(dataset=bare))))
    only(check_data_set(folders(root, type='CocoPanopticDataset', data_prefix=None)), 'not-checked')


def test_file_of_names_that_cannot_be_read(root, tmp_path):
    names = tmp_path / 'names.txt'
    names.write_text('\n'.join(CLASSES))
    dataset = coco(root, metainfo=dict(classes=str(names)))
    assert check_data_set(dataset).findings == []
    for harm in (names.unlink, lambda: names.write_bytes(b'\xff')):
        harm()
        with pytest.raises(DataError, match=f'metainfo.classes .*{names}'):
            check_data_set(dataset)


def test_heads_whose_classes_are_not_those_of_the_data(root):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    cfg.classes_from_data = False
    cfg.model.rpn_head.num_classes, cfg.model.backbone.num_classes = 1, 1000
    cfg.model.roi_head.semantic_head = dict(type='SCNetSemanticHead', num_classes=183)
    cfg.model.auxiliary_head = [dict(type=kind, num_classes=number) for kind, number in (
        ('STDCHead', 2), ('mmdet.FusedSemanticHead', 9), ('FCNHead', 80))]
    assert check_classes(cfg) == []
    cfg.model.auxiliary_head[2].num_classes = 79
    assert [finding.file for finding in check_classes(cfg)] == ['model.FCNHead']
    cfg.classes_from_data = True
    take_classes(cfg)
    assert [head.num_classes for head in (
        cfg.model.rpn_head, cfg.model.backbone, cfg.model.roi_head.semantic_head, *cfg.model.auxiliary_head,
        cfg.model.roi_head.bbox_head, cfg.model.roi_head.mask_head)] == [1, 1000, 183, 2, 9, 5, 5, 5]
    # of panoptic data the heads know the things alone
    things = Config(dict(model=dict(bbox_head=dict(type='FCOSHead', num_classes=80)), train_dataloader=dict(
        dataset=coco(root, type='CocoPanopticDataset', metainfo={}))))
    assert check_classes(things) == []
    things.model.bbox_head.num_classes = 133
    assert [finding.file for finding in check_classes(things)] == ['model.FCOSHead']


def test_heads_with_another_number_of_classes(root):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    assert check_classes(cfg) == []  # they come from the data
    cfg.classes_from_data = False
    assert check_classes(cfg) == []  # 80 and 80
    cfg.train_dataloader.dataset.metainfo = dict(classes=CLASSES)
    found = check_classes(cfg)
    # more than the data has are an open vocabulary, fewer end the run; a training uses no test data
    spare = {('class-spare', 'model.Shared2FCBBoxHead'), ('class-spare', 'model.FCNMaskHead')}
    loaders = {('class-count', 'val_dataloader'), ('class-test', 'test_dataloader')}
    assert {(f.kind, f.file) for f in found} == spare | loaders
    assert 'num_classes = 80' in found[0].sentence and found[0].sentence.endswith(' 5 classes')
    assert any(f.sentence.endswith(": without 'disc', 'square', 'triangle', 'star', 'cross' and with "
                                   "'person', 'bicycle', 'car', 'motorcycle', 'airplane' and 75 more") for f in found)
    cfg.model.roi_head.bbox_head.num_classes = 4
    assert {(f.kind, f.file) for f in check_classes(cfg)} == loaders | {
        ('class-count', 'model.Shared2FCBBoxHead'), ('class-spare', 'model.FCNMaskHead')}


def test_classes_that_somebody_wrote_are_not_overwritten(root):
    """Those that a run found and dumped are not written by anybody: they have the colours of this package."""
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    take_classes(cfg)
    take_classes(cfg)
    assert check_classes(cfg) == []
    cfg.val_dataloader.dataset.metainfo.palette = class_colours(CLASSES)[::-1]
    assert [finding.kind for finding in check_classes(cfg)] == ['class-explicit']
    cfg.val_dataloader.dataset.metainfo = dict(classes=('one', 'two'))
    finding, = check_classes(cfg)
    assert finding.kind == 'class-explicit' and 'val_dataloader.dataset.metainfo.classes' in finding.sentence
    assert 'classes_from_data=False' in finding.sentence and 'train_dataloader' not in finding.sentence
    with pytest.raises(DataError, match='remove metainfo.classes'):
        take_classes(cfg)
    take_classes(cfg, on_findings='warn')
    assert cfg.val_dataloader.dataset.metainfo.classes == ('one', 'two')
    cfg.classes_from_data = False
    assert 'class-explicit' not in {finding.kind for finding in check_classes(cfg)}


@pytest.mark.parametrize('ids', IDS.values(), ids=IDS)
def test_ids_are_no_places(root, ids):
    """Counts, drawn objects and classes do not depend on the ids, and are those of mmdet; findings name the ids."""
    def change(content):
        for row in content['categories']:
            row['id'] = ids[row['id'] - 1]
        for row in content['images']:
            row['id'] = number(1000 - 37 * row['id'])
        for place, row in enumerate(content['annotations']):
            row.update(id=number((place * 7919) % 10007), image_id=number(1000 - 37 * row['image_id']),
                       category_id=ids[row['category_id'] - 1])

    before, number = check_data_set(coco(root)), float if isinstance(ids[0], float) else int  # as pandas writes them
    content = rewrite(root, change)
    report = check_data_set(coco(root))
    assert report.findings == [] and report.counts == before.counts and report.classes == before.classes
    assert [name for name, *_ in report.classes] == list(CLASSES)
    assert len({amount for *_, amount in report.classes}) > 1  # exchanged classes would show
    drawn = [[(a['name'], a['bbox']) for a in sample['annotations']] for sample in report.samples]
    assert drawn == [[(a['name'], a['bbox']) for a in sample['annotations']] for sample in before.samples]
    assert sum(map(len, drawn)) == len(content['annotations'])
    (root / 'annotations/instances_val2017.json').write_bytes((root / ANNOTATIONS).read_bytes())
    cfg = load_config(SMALL_CONFIG, data_root=root)
    assert classes_of_data(cfg.train_dataloader.dataset) == dict(classes=CLASSES, category_ids=ids)
    take_classes(cfg)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        assert tuple(loader.dataset.metainfo.category_ids) == ids and loader.dataset.metainfo.classes == CLASSES
    dataset = CocoDataset(**{key: value for key, value in coco(root, pipeline=[]).items() if key != 'type'})
    labels = [instance['bbox_label'] for i in range(len(dataset)) for instance in dataset.get_data_info(i)['instances']]
    assert [labels.count(label) for label in range(5)] == [amount for *_, amount in report.classes]
    assert dataset.cat_ids == list(ids)
    rewrite(root, lambda c: c['annotations'][4].update(category_id=77))
    finding, = only(check_data_set(coco(root)), 'unknown-category')
    assert finding[2:] == ('annotations', 4, content['annotations'][4]['id'], '77')
    rewrite(root, lambda c: c['images'][2].update(file_name='none.jpg'))
    finding = next(f for f in check_data_set(coco(root)).findings if f.kind == 'image-missing')
    assert finding[2:5] == ('images', 2, content['images'][2]['id'])
