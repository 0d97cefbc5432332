"""The tasks: a config of any form finds its own."""
from mmengine.config import Config

from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_DINO_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.loading import load_config
from xcit_dense.config.tasks import task_of, tasks_with


def test_the_task_of_a_config_is_that_of_its_model():
    for path, name in ((TINY_CONFIG, 'detection'), (TINY_SEG_CONFIG, 'segmentation'),
                       (TINY_CLS_CONFIG, 'classification'), (TINY_DINO_CONFIG, 'features')):
        assert task_of(load_config(path)).name == name
    # also without a default scope, as in a pure-Python config
    from mmdet.models import MaskRCNN
    assert task_of(Config(dict(model=dict(type=MaskRCNN)))).name == 'detection'


def test_an_unknown_model_has_no_parts():
    task = task_of(Config(dict(model=dict(type='Mine'), default_scope='mmpose')))
    assert (task.name, task.framework) == ('mmpose', 'mmpose') and not any(
        map(task.part, ('recorder', 'predictor', 'loaded', 'fit', 'augmented')))
    assert task_of(Config({})).framework is None and tasks_with('recorder').count(' or ') == 2
