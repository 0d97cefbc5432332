"""Data sets compared with each other and with their metrics."""
import json
import shutil

import pytest
from mmengine.config import Config

from helpers.faulty_data import ANNOTATIONS, coco, fields, folders, rewrite
from helpers.paths import TINY_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.data.check import beside, check_before_training, check_beside, check_data_sets
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
    repeated = dict(type='RepeatDataset', times=2, dataset=good)
    for members, name in (((coco(root), good), '0'), ((good, coco(root)), '1'), ((coco(root), repeated), '0')):
        reports = check_data_sets(Config(dict(train_dataloader=concat(*members))))
        assert set(reports) == {'train_dataloader.0', 'train_dataloader.1'}
        assert [names for names, report in reports.items() if report.errors] == [f'train_dataloader.{name}']
    cfg = load_config(TINY_CONFIG, data_root=tmp_path / 'other', pretrained=False)
    cfg.train_dataloader.dataset = concat(coco(root), good)['dataset']
    with pytest.raises(DataError, match='mask'):
        check_before_training(cfg)


def test_a_data_set_that_is_read_twice_is_told(root):
    one, other = coco(root), coco(f'{root}/', pipeline=[], filter_cfg=dict(min_size=3))
    finding, = check_beside(Config(dict(train_dataloader=concat(one, other))))
    assert (finding.kind, finding.file, finding.value) == ('data-set-twice', 'train_dataloader.1', 'train_dataloader.0')
    for members in ((one, coco(root, data_prefix=dict(img='val2017/'))), (one, coco(root, ann_file=VALIDATION)),
                    (one, coco(root.parent)), (one, folders(root))):
        assert check_beside(Config(dict(train_dataloader=concat(*members)))) == []
    assert check_beside(Config(dict(train_dataloader=dict(dataset=one), val_dataloader=dict(dataset=one)))) == []


@pytest.fixture
def judged(root):
    """A function that gives the findings of a metric for validation data, and the words of the first."""

    def call(change=lambda content: None, file=None, **metric):
        content = json.loads((root / VALIDATION).read_text())
        change(content)
        (root / 'judge.json').write_text(json.dumps(content))
        cfg = Config(dict(val_dataloader=dict(dataset=coco(
            root, ann_file=VALIDATION, data_prefix=dict(img='val2017/'), test_mode=True)), val_evaluator=dict(
                type='CocoMetric', ann_file=str(file or root / 'judge.json'), **metric)))
        return [(finding.kind, finding.file) for finding in check_beside(cfg)]

    return call


def test_a_metric_of_another_data_set_is_found(root, judged):
    wrong = [('evaluator-data', 'val_evaluator')]
    assert judged(file=root / ANNOTATIONS) == wrong  # whose image ids are the same and go on
    assert judged(file=root / 'none.json') == wrong
    assert judged(lambda c: c['images'].pop()) == wrong
    assert judged(lambda c: [image.update(id=image['id'] + 50) for image in c['images']]) == wrong
    assert judged(lambda c: c['categories'].reverse()) == wrong
    assert judged(lambda c: c['categories'].pop()) == wrong


def test_other_files_for_the_same_data_are_no_fault(root, judged):
    assert judged() == judged(file=root / VALIDATION) == judged(file=root / 'annotations/../' / VALIDATION) == []
    assert judged(lambda c: c['annotations'].pop()) == []  # hard ones left out
    assert judged(lambda c: [i.update(file_name=f'renamed/{i["file_name"]}') for i in c['images']]) == []
    assert judged(lambda c: [i.update(file_name=f'{i["id"]}.png') for i in c['images']]) == []
    more = judged(lambda c: c['images'].append(dict(c['images'][0], id=99)))
    assert more == [('evaluator-more', 'val_evaluator')]
    assert judged(file='s3://bucket/a.json') == judged(file='x', backend_args=dict(backend='petrel')) == []


def test_files_beside_each_other_are_compared_once(root, monkeypatch):
    reads, read = [], beside.read_coco
    monkeypatch.setattr(beside, 'read_coco', lambda path: reads.append(path) or read(path))
    cfg = Config(dict(val_dataloader=dict(dataset=coco(root, ann_file=VALIDATION, data_prefix=dict(img='val2017/'))),
                      val_evaluator=dict(type='CocoMetric', ann_file=str(root / ANNOTATIONS))))
    first = check_beside(cfg)
    assert first and check_beside(cfg) == first and len(reads) == 2
    check_beside(cfg, use_cache=False)
    assert len(reads) == 4
    cfg.val_dataloader.dataset.metainfo.classes = ('disc', )
    check_beside(cfg)
    assert len(reads) == 6
    shutil.copy(root / VALIDATION, root / ANNOTATIONS)
    assert check_beside(cfg) == [] and len(reads) == 8
    (root / ANNOTATIONS).write_text('no json')
    for amount in (10, 12):  # it may be whole next time
        assert check_beside(cfg) == [] and len(reads) == amount


def test_a_training_is_stopped_by_the_metric_of_its_validation_alone(root):
    cfg = load_config(TINY_CONFIG, data_root=root, pretrained=False)
    cfg.test_evaluator = [dict(type='DumpDetResults'), dict(type='CocoMetric', ann_file=str(root / ANNOTATIONS))]
    check_before_training(cfg)
    assert [finding.file for finding in check_beside(cfg)] == ['test_evaluator.1']
    cfg.val_evaluator = dict(metrics=cfg.test_evaluator)
    with pytest.raises(DataError, match=r'val_evaluator\.metrics\.1'):
        check_before_training(cfg)
