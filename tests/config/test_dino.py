"""Configs of DINO: their settings, the mistakes that are found in them, and what is refused."""
import pytest
from mmengine.config import Config

from xcit_dense.config import check
from xcit_dense.config.check import check_hooks, check_schedule
from xcit_dense.config.loading import load_config
from xcit_dense.config.settings import Settings
from xcit_dense.config.testing import check_labelled
from xcit_dense.data.classes import take_classes
from xcit_dense.errors import ConfigError, DataError

FULL, SMALL = 'xcit_s12_p16_dino', 'xcit_n12_p16_dino_small'
#: The step that makes the views, in a dotted key.
VIEWS = 'train_dataloader.dataset.pipeline.1'


def test_the_detector_of_that_name_is_not_ours():
    theirs = Config(dict(model=dict(type='DINO', backbone=dict(type='ResNet'), bbox_head=dict(type='DINOHead'))))
    check_labelled(theirs, 'dino-4scale_r50', None)
    assert not check_hooks(theirs)
    with pytest.raises(ConfigError, match='such as xcit_s12_p16_custom, with model.backbone.arch=nano_12_p16, a'):
        check_labelled(load_config(SMALL), SMALL, None)


def test_options_and_image_size_set_the_views():
    """The image size is that of the global views; local ones keep their ratio."""
    for name, how, wanted in (
            (FULL, dict(cfg_options={f'{VIEWS}.num_local': 6, f'{VIEWS}.local_size': 64}, check=True), (224, 64, 6)),
            (FULL, dict(settings=Settings(image_size=112)), (112, 48, 10)),
            (FULL, dict(settings=Settings(image_size=320)), (320, 144, 10)),
            (SMALL, dict(settings=Settings(image_size=96)), (96, 48, 4))):
        step = load_config(name, **how).train_dataloader.dataset.pipeline[1]
        assert (step.type, step.global_size, step.local_size, step.get('num_local', 10)) == ('MultiCrop', *wanted)
    with pytest.raises(ConfigError, match='must be one side for this config'):
        load_config(FULL, settings=Settings(image_size=[224, 96]))
    steps = [dict(type='LoadImageFromFile'), dict(type='MultiView', num_views=[2], transforms=[[dict(
        type='RandomResizedCrop', scale=64)]]), dict(type='PackInputs')]
    with pytest.raises(ConfigError, match='--image-size: the views of MultiView have sizes of their own'):
        load_config(FULL, cfg_options={'train_dataloader.dataset.pipeline': steps}, settings=Settings(image_size=96))


def test_settings_reach_all_schedules(logged):
    """Their shares of a run stay, and batch size and learning rate leave the weight decay alone."""
    before, said = load_config(FULL), logged(check)
    cfg = load_config(FULL, settings=Settings(epochs=30))
    assert [(part.get('begin'), part['end']) for part in cfg.param_scheduler] == [(0, 3), (3, 30), (0, 30)]
    assert (cfg.custom_hooks[0].warmup, cfg.custom_hooks[0].freeze_last_layer) == (3, 1)
    cfg = load_config(FULL, settings=Settings(epochs=1))  # prototypes that are frozen to the end learn nothing
    assert (cfg.custom_hooks[0].warmup, cfg.custom_hooks[0].freeze_last_layer) == (0, 0)
    cfg = load_config(FULL, settings=Settings(batch_size=32))
    assert cfg.optim_wrapper.optimizer.lr == before.optim_wrapper.optimizer.lr / 2
    assert cfg.param_scheduler[1]['eta_min'] == before.param_scheduler[1]['eta_min'] / 2
    assert cfg.param_scheduler[2] == before.param_scheduler[2]
    assert cfg.optim_wrapper.optimizer.weight_decay == before.optim_wrapper.optimizer.weight_decay
    check_schedule(before)
    assert not said


def test_options_without_a_meaning_are_refused_in_one_sentence(tmp_path):
    cfg = load_config(SMALL)
    with pytest.raises(ConfigError, match='--augment light would replace the views'):
        load_config(SMALL, settings=Settings(augment='light'))
    cfg.merge_from_dict(dict(classes_from_data=True))
    with pytest.raises(DataError, match='no classes: set classes_from_data=False'):
        take_classes(cfg)
    with pytest.raises(DataError, match='--data-root: there is no folder .*nowhere'):
        load_config(SMALL, data_root=tmp_path / 'nowhere')
