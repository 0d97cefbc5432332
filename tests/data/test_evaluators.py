"""The files that evaluators read: one that is not there is named before a run begins."""
import pytest
from mmengine.config import Config
from mmengine.registry import METRICS

from helpers.paths import TINY_CONFIG
from xcit_dense.data.evaluators import check_evaluators
from xcit_dense.errors import DataError


def config(**metric):
    return Config(dict(default_scope='mmdet', val_evaluator=dict(type='CocoMetric', **metric)))


def test_each_file_that_is_not_there_is_named(tmp_path):
    there = tmp_path / 'there.json'
    there.write_text('{}')
    cfg = Config(dict(default_scope='mmdet', val_evaluator=[
        dict(type='CocoMetric', ann_file=str(there)), dict(type='LVISMetric', ann_file='gone/a.json')],
        test_evaluator=dict(type='Evaluator', metrics=[dict(type='CocoMetric', ann_file='gone/b.json')])))
    with pytest.raises(DataError) as caught:
        check_evaluators(cfg)
    assert [line.partition(' = ')[0].strip() for line in str(caught.value).splitlines()[1:-1]] == [
        'val_evaluator.1.ann_file', 'test_evaluator.metrics.0.ann_file']
    with pytest.raises(DataError, match='gone/a.json') as caught:
        check_evaluators(cfg, ['val_dataloader'])
    assert 'gone/b.json' not in str(caught.value)


def test_what_cannot_be_looked_at_or_is_not_asked_for_is_no_error():

    @METRICS.register_module(name='OwnMetric')
    class OwnMetric:
        pass

    try:
        for cfg in (config(), config(ann_file=None), config(ann_file='s3://a/b.json'),
                    config(ann_file='b.json', backend_args=dict(backend='petrel')), Config(dict(val_evaluator=None)),
                    Config(dict(val_evaluator=dict(type='OwnMetric', ann_file='gone')))):
            check_evaluators(cfg)
    finally:
        METRICS.module_dict.pop('OwnMetric')


@pytest.mark.parametrize('tool', ('train.py', 'test.py'))
def test_the_tools_name_the_file(tool, call_tool, demo_data, tmp_path):
    """A training without validation needs none."""
    name = 'val' if tool == 'train.py' else 'test'
    file = [] if tool == 'train.py' else [tmp_path / 'weights.pth']
    code, text = call_tool(tool, TINY_CONFIG, *file, '--data-root', demo_data, '--work-dir', tmp_path,
                           '--cfg-options', f'{name}_evaluator.ann_file=gone.json')
    assert code == 1 and f"{name}_evaluator.ann_file = 'gone.json'" in text
