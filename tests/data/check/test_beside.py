"""Data sets compared with each other and with their metrics; files that were checked once are not read again."""
import os
import shutil
from unittest.mock import Mock

import pytest
from mmengine.config import Config
from PIL import Image

from helpers.faulty_data import ANNOTATIONS, NAN, coco, fields, folders, kinds_of, rewrite
from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data import files as data_files
from xcit_dense.data.check import coco as coco_check
from xcit_dense.data.check import images as images_check
from xcit_dense.data.check.agreement import check_beside
from xcit_dense.data.check.check import check_before_test, check_before_training, check_data_set, check_data_sets
from xcit_dense.data.demo import make_demo_data
from xcit_dense.errors import DataError

VALIDATION = ANNOTATIONS.replace('train', 'val')


def concat(*members):
    return dict(dataset=dict(type='ConcatDataset', datasets=list(members)))


def test_every_member_has_a_report_of_its_own(root, tmp_path):
    """A bad first data set stops the training, also if a good one follows."""
    rewrite(root, fields('annotations', 0, segmentation='x'))
    make_demo_data(tmp_path / 'other', num_train=4, num_val=2, size=64)
    good = coco(tmp_path / 'other')
    for members, name in (((coco(root), dict(type='RepeatDataset', times=2, dataset=good)), '0'),
                          ((good, coco(root)), '1')):
        reports = check_data_sets(Config(dict(train_dataloader=concat(*members))))
        assert set(reports) == {'train_dataloader.0', 'train_dataloader.1'}
        assert [names for names, report in reports.items() if report.errors] == [f'train_dataloader.{name}']
    cfg = load_config(TINY_CONFIG, data_root=tmp_path / 'other', pretrained=False)
    cfg.train_dataloader.dataset = concat(coco(root), good)['dataset']
    with pytest.raises(DataError, match='mask'):
        check_before_training(cfg)


def test_a_data_set_that_is_read_twice_is_told(root, said):
    one, other = coco(root), coco(f'{root}/', pipeline=[], filter_cfg=dict(min_size=3))
    finding, = check_beside(Config(dict(train_dataloader=concat(one, other))))
    assert (finding.kind, finding.file, finding.value) == ('data-set-twice', 'train_dataloader.1', 'train_dataloader.0')
    check_before_test(Config(dict(test_dataloader=concat(one, other))))
    assert len(said) == 1 and 'reads the same files as test_dataloader.0' in said[0]
    for members in ((one, coco(root, data_prefix=dict(img='val2017/'))), (one, coco(root, ann_file=VALIDATION)),
                    (one, coco(root.parent)), (one, folders(root)), (dict(one, indices=[0]), dict(one, indices=[1]))):
        assert check_beside(Config(dict(train_dataloader=concat(*members)))) == []
    assert check_beside(Config(dict(train_dataloader=dict(dataset=one), val_dataloader=dict(dataset=one)))) == []


def test_a_metric_of_another_data_set_is_found(root):
    def judged(change=lambda content: None, file=root / 'judge.json', **metric):
        shutil.copy(root / VALIDATION, root / 'judge.json')
        rewrite(root, change, 'judge.json')
        data = coco(root, ann_file=VALIDATION, data_prefix=dict(img='val2017/'), test_mode=True)
        cfg = Config(dict(val_dataloader=dict(dataset=data), val_evaluator=dict(
            type='CocoMetric', ann_file=str(file), **metric)))
        return [(finding.kind, finding.file) for finding in check_beside(cfg)]

    wrong = [('evaluator-data', 'val_evaluator')]
    assert judged(file=root / ANNOTATIONS) == wrong  # whose image ids are the same and go on
    assert judged(file=root / 'none.json') == judged(lambda c: c['images'].pop()) == wrong
    assert judged(lambda c: c['images'].append(dict(c['images'][0], id=99))) == wrong
    assert judged(lambda c: [i.update(file_name=f'{i["id"]}.png') for i in c['images']]) == wrong
    assert judged(lambda c: [image.update(id=image['id'] + 50) for image in c['images']]) == wrong
    assert judged(lambda c: c['categories'].reverse()) == judged(lambda c: c['categories'].pop()) == wrong
    # other files for the same data are no fault
    assert judged() == judged(file=root / VALIDATION) == judged(file=root / 'annotations/../' / VALIDATION) == []
    assert judged(lambda c: c['annotations'].pop()) == []  # hard ones left out
    assert judged(lambda c: [i.update(file_name=f'renamed/{i["file_name"][:-3]}png') for i in c['images']]) == []
    assert judged(file='s3://bucket/a.json') == judged(file='x', backend_args=dict(backend='petrel')) == []


def test_a_training_is_stopped_by_the_metric_of_its_validation_alone(root):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    cfg.test_evaluator = [dict(type='DumpDetResults'), dict(type='CocoMetric', ann_file=str(root / ANNOTATIONS))]
    check_before_training(cfg)
    assert [finding.file for finding in check_beside(cfg)] == ['test_evaluator.1']
    cfg.val_evaluator = dict(metrics=cfg.test_evaluator)
    with pytest.raises(DataError, match=r'val_evaluator\.metrics\.1'):
        check_before_training(cfg)


def test_second_look_reads_only_what_changed(root, monkeypatch):
    header, file = Mock(wraps=images_check.read_header), Mock(wraps=coco_check.check_coco)
    monkeypatch.setattr(images_check, 'read_header', header)
    monkeypatch.setattr(coco_check, 'check_coco', file)
    image = (root / 'train2017/00000000000{}.jpg').as_posix().format
    for change, files, headers, kinds in (
            (lambda: None, 1, 6, set()), (lambda: None, 0, 0, set()),
            (lambda: os.utime(image(2), ns=(0, 0)), 0, 1, set()),
            (lambda: Image.new('RGB', (9, 9)).save(image(3)), 0, 1, {'image-size'}),
            (lambda: os.unlink(image(4)), 0, 0, {'image-size', 'image-missing'}),
            (lambda: rewrite(root, fields('annotations', 0, bbox=[NAN] * 4)), 1, 0, {
                'image-size', 'image-missing', 'box-ignored'})):
        change()
        header.reset_mock()
        file.reset_mock()
        report = check_data_set(coco(root))
        assert (file.call_count, header.call_count, kinds_of(report)) == (files, headers, kinds)
        assert report.samples and report.counts['images'] == 6
    header.reset_mock()
    check_data_set(coco(root), use_cache=False)
    assert header.call_count == 5


def test_damaged_cache_is_not_believed_and_without_a_place_there_is_none(root, tmp_path, monkeypatch):
    folder = tmp_path / 'cache/xcit_dense/data_check'
    rewrite(root, fields('annotations', 0, bbox=[NAN] * 4))
    first = check_data_set(coco(root))
    for harm in (lambda path: path.write_bytes(path.read_bytes()[:-20]), lambda path: (path.unlink(), path.mkdir())):
        for path in sorted(folder.iterdir()):
            harm(path)
        assert repr(check_data_set(coco(root)).findings) == repr(first.findings)
    monkeypatch.setenv('XDG_CACHE_HOME', str(root / ANNOTATIONS))
    assert repr(check_data_set(coco(root)).findings) == repr(first.findings)


def test_data_sets_are_one_where_all_that_is_checked_is_the_same(root):
    cfg = load_config(TINY_SEG_CONFIG, data_root=root, pretrained=False)
    cfg.test_dataloader.dataset = dict(reversed(cfg.val_dataloader.dataset.items()))
    assert set(check_data_sets(cfg)) == {'train_dataloader', 'val_dataloader, test_dataloader'}
    for change in (dict(img_suffix='.png'), dict(seg_map_suffix='_x.png'), dict(ignore_index=3),
                   dict(backend_args=dict(backend='x')), dict(pipeline=[
                       dict(type='LoadImageFromFile', imdecode_backend='turbojpeg'), dict(type='LoadAnnotations')])):
        cfg.test_dataloader.dataset = dict(cfg.val_dataloader.dataset, **change)
        assert len(check_data_sets(cfg)) == 3, change


def test_a_file_that_could_not_be_opened_is_read_the_next_time(tmp_path):
    """Its content did not change: the network was down, or nobody might read it."""
    (tmp_path / 'a.png').write_bytes(b'content')

    def deny(path):
        raise PermissionError(13, 'denied')

    for read, fault, content in ((deny, 'unreadable', None), (lambda path: 'read', '', 'read'), (deny, '', 'read')):
        state, = data_files.read_files([tmp_path / 'a.png'], read, 'maps', tmp_path)
        assert (state.fault, state.content) == (fault, content)
