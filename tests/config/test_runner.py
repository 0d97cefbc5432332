"""Any config trains with our runner, loops and hooks; what stays of somebody else is named."""
import re

import pytest
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from mmengine.runner import EpochBasedTrainLoop, Runner

from helpers.paths import TINY_CONFIG
from helpers.refusals import stock
from xcit_dense.config.loading import load_config, read_config
from xcit_dense.config.runner import is_ours, use_our_runner
from xcit_dense.train import DenseCheckpointHook, DenseRunner

OURS = dict(type='DenseCheckpointHook', interval=1)
Loop, Saving = type('Loop', (EpochBasedTrainLoop, ), {}), type('Saving', (DenseCheckpointHook, ), {})  # a user's


def used(capfd, trains=True, **changes):
    """A config with what a run of it uses, and what was said."""
    cfg = Config({'train_cfg': dict(by_epoch=True, max_epochs=2), **changes})
    capfd.readouterr()
    use_our_runner(cfg, trains)
    return cfg, ''.join(capfd.readouterr())


@pytest.mark.parametrize(('framework', 'name', 'loop'), (
    ('mmdet', 'retinanet/retinanet_r18_fpn_1x_coco.py', 'DenseEpochLoop'),
    ('mmseg', 'segformer/segformer_mit-b0_8xb2-160k_ade20k-512x512.py', 'DenseIterLoop')))
def test_a_config_of_a_framework(framework, name, loop, capfd):
    """Its options stay; a test changes no part of a training."""
    if not (path := stock(framework, name)).is_file():
        pytest.skip(f'this {framework} brings no configs')
    before, tested, cfg = read_config(path), load_config(path, tested=True), load_config(path, check=True)
    saving = before.default_hooks.checkpoint
    assert (cfg.runner_type, cfg.train_cfg.type) == ('DenseRunner', loop)
    assert cfg.default_hooks.checkpoint == dict(saving, type='DenseCheckpointHook')
    assert cfg.default_hooks.startup == dict(type='StartupHook')
    assert cfg.visualizer.vis_backends == [dict(type='DenseVisBackend')]
    assert tested._cfg_dict == dict(before._cfg_dict, runner_type='DenseRunner')
    assert ' stays' not in ''.join(capfd.readouterr())


def test_what_a_config_leaves_out_and_what_it_gives_as_classes(capfd):
    cfg, said = used(capfd, default_scope='mmdet')
    assert "runner_type = 'Runner' in the config keeps mmengine's" in said
    assert cfg.train_cfg == dict(type='DenseEpochLoop', max_epochs=2)
    assert cfg.default_hooks == dict(checkpoint=OURS, startup=dict(type='StartupHook'), ending=dict(type='EndingHook'))
    cfg, said = used(capfd, train_cfg=dict(type=EpochBasedTrainLoop, max_epochs=2), default_hooks=dict(
        checkpoint=dict(type=CheckpointHook, interval=1), startup=None, ending=None))
    assert ' stays' not in said and cfg.train_cfg.type == 'DenseEpochLoop'
    assert cfg.default_hooks == dict(checkpoint=OURS, startup=None, ending=None)
    cfg, said = used(capfd, train_cfg=dict(by_epoch=False, max_iters=2), custom_hooks=[dict(type='StartupHook')],
                     default_hooks=dict(checkpoint=None, ending=None))
    assert ' stays' not in said and cfg.train_cfg == dict(type='DenseIterLoop', max_iters=2)
    assert cfg.default_hooks == dict(checkpoint=None, ending=None)


def test_our_own_configs_and_subclasses_of_ours_stay_as_they_are(capfd):
    kinds = {'DenseRunner': True, 'Runner': False, type('Own', (DenseRunner, ), {}): True, Runner: False}
    assert {kind: is_ours(Config(dict(runner_type=kind))) for kind in kinds} == kinds
    assert load_config(TINY_CONFIG, check=True, pretrained=False)._cfg_dict == load_config(
        TINY_CONFIG, pretrained=False)._cfg_dict
    cfg, said = used(capfd, default_hooks=dict(checkpoint=dict(type=Saving)))
    assert ' stays' not in said and cfg.default_hooks.checkpoint.type is Saving
    assert not used(capfd, trains=False, runner_type='Runner')[1]  # a test loses none of it


@pytest.mark.parametrize(('changes', 'said'), (
    (dict(train_cfg=dict(type=Loop, max_epochs=2)), 'train_cfg.type = Loop stays.*SIGTERM end the run without saving.*'
                                                    'not continue exactly'),
    (dict(default_hooks=dict(checkpoint=dict(
        type='CheckpointHook', out_dir='a', published_keys=1, filename_tmpl='b/c'))),
     r"default_hooks.checkpoint = CheckpointHook \(out_dir='a', published_keys=1, filename_tmpl='b/c'\) stays.*saving"),
    (dict(default_hooks=dict(checkpoint=dict(type='CheckpointHook', backend_args=dict(a=1)))),
     r"runner_type = Runner \(backend_args={'a': 1}\) stays"),
    (dict(runner_type=Runner), 'runner_type = Runner stays.*without saving.*not at all'),
    (dict(default_hooks=dict(checkpoint=dict(type='CheckpointHook', out_dir='s3://bucket'))),
     r"runner_type = Runner \(out_dir='s3://bucket'\) stays")))
def test_what_stays_is_named_with_what_is_lost(changes, said, capfd):
    """In one line; nothing else of a config with another runner changes."""
    cfg, told = used(capfd, **changes)
    assert re.search(said, told) and told.count(' stays') == 1
    if 'runner_type' in said:
        assert cfg._cfg_dict == {'train_cfg': dict(by_epoch=True, max_epochs=2), **changes}
    else:
        assert cfg.runner_type == 'DenseRunner'
        kept = cfg.train_cfg if 'train_cfg' in changes else cfg.default_hooks.checkpoint
        assert kept == next(iter(changes.values())).get('checkpoint', kept)
