"""Classes of the data against those of the config and the heads."""

import pytest
from mmengine.config import Config

from helpers.faulty_data import coco, fields, folders, kinds_of, only, rewrite
from helpers.paths import TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import (
    check_classes,
    check_data_set,
)
from xcit_dense.data.classes import difference_of, take_classes
from xcit_dense.data.datasets import check_data
from xcit_dense.data.demo import CLASSES
from xcit_dense.errors import DataError


def test_classes_are_matched_by_name(root):
    rewrite(root, fields('categories', 0, name='Disk'))
    report = check_data_set(coco(root))
    assert kinds_of(report) == {'class-missing', 'class-unused'}
    (error, ), (warning, ) = report.errors, report.warnings
    assert error.value.startswith('1 of the 5 classes') and error.value.endswith("'disc' (it has 'Disk')")
    assert warning.value.startswith('1 class ') and warning.value.endswith(": 'Disk'")
    assert check_data_set(coco(root, metainfo={}), from_data=True).findings == []
    many, = check_data_set(coco(root, metainfo={})).errors  # the data set's own are COCO's
    assert many.value.startswith('80 of the 80 classes') and many.value.endswith(
        ": 'person', 'bicycle', 'car', 'motorcycle', 'airplane' and 75 more")
    order = check_data_set(coco(root, metainfo=dict(classes=('Disk', 'triangle', 'square', 'star', 'cross'))))
    assert "class 1 is 'square', not 'triangle'" in only(order, 'class-order')[0].sentence


@pytest.mark.parametrize('of_data', ('DISC', 'Disc', 'disC'))
def test_a_class_in_other_capitals_is_the_nearest_one(root, of_data):
    rewrite(root, fields('categories', 0, name=of_data))
    for wanted in ('disc', 'DISc'):
        report = check_data_set(coco(root, metainfo=dict(classes=(wanted, *CLASSES[1:]))))
        error, = report.errors
        assert error.kind == 'class-missing' and error.value.endswith(f"{wanted!r} (it has {of_data!r})")


def test_classes_of_label_maps(root):
    names = ('background', *CLASSES)
    swapped = folders(root, metainfo=dict(classes=(*names[:-2], names[-1], names[-2])))
    only(check_data_set(swapped), 'class-order')
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


@pytest.mark.parametrize('harm', (lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b'\xff')))
def test_file_of_names_that_cannot_be_read(root, tmp_path, harm):
    names = tmp_path / 'names.txt'
    names.write_text('\n'.join(CLASSES))
    dataset = coco(root, metainfo=dict(classes=str(names)))
    assert check_data_set(dataset).findings == []
    names.unlink()
    harm(names)
    with pytest.raises(DataError, match=f'metainfo.classes .*{names}'):
        check_data_set(dataset)


def test_heads_whose_classes_are_not_those_of_the_data(root):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    cfg.classes_from_data = False
    cfg.model.rpn_head.num_classes = 1
    cfg.model.backbone.num_classes = 1000
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
    assert {f.file for f in found if f.file.startswith('model.')} == {'model.Shared2FCBBoxHead', 'model.FCNMaskHead'}
    assert 'num_classes = 80' in found[0].sentence and found[0].sentence.endswith(' 5 classes')
    assert {f.file for f in found if 'loader' in f.file} == {'val_dataloader', 'test_dataloader'}
    assert {(f.kind, f.file) for f in found if not f.file.startswith('model.')} == {
        ('class-count', 'val_dataloader'), ('class-test', 'test_dataloader')}  # a training uses no test data
    # more than the data has are an open vocabulary, fewer end the run
    assert {f.kind for f in found if f.file.startswith('model.')} == {'class-spare'}
    cfg.model.roi_head.bbox_head.num_classes = 4
    assert {(f.kind, f.file) for f in check_classes(cfg) if f.file.startswith('model.')} == {
        ('class-count', 'model.Shared2FCBBoxHead'), ('class-spare', 'model.FCNMaskHead')}
    assert any(f.sentence.endswith(": without 'disc', 'square', 'triangle', 'star', 'cross' and with "
                                   "'person', 'bicycle', 'car', 'motorcycle', 'airplane' and 75 more") for f in found)
    assert difference_of('abc', 'acb') == "class 1 is 'b', not 'c'" and difference_of('ab', 'ab') == ''
    assert difference_of('aab', 'ab') == "class 1 is 'a', not 'b'" and difference_of('a', 'ab') == "without 'b'"


def test_classes_that_somebody_wrote_are_not_overwritten(root):
    """Those that a run found and dumped are not written by anybody."""
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    take_classes(cfg)
    take_classes(cfg)
    assert check_classes(cfg) == []
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


def test_a_class_whose_name_says_that_it_is_none_is_told(root):
    (root / 'classes.txt').write_text('background\ndisc\nsquare\ntriangle\nstar\nunlabeled')
    finding, = check_data_set(folders(root, metainfo={}), from_data=True).findings
    assert finding.kind == 'class-void' and finding.severity == 'warning' and '--ignore-label 5' in finding.sentence
