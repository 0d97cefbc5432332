"""Another length of a run: the schedule keeps its shape."""
import pytest
from mmengine.config import Config

from helpers.paths import TINY_CONFIG, TINY_DINO_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.length import set_length, set_val_interval
from xcit_dense.config.loading import load_config, read_config
from xcit_dense.config.settings import Settings
from xcit_dense.errors import ConfigError, DataError


def config(schedulers, hooks=(), **loop):
    return Config(dict(train_cfg=loop, param_scheduler=schedulers, custom_hooks=list(hooks)))


def test_published_schedules():
    cfg = read_config('maskrcnn_xcit_s12_p16_coco')
    set_length(cfg, 12, 'epochs')
    warm_up, steps = cfg.param_scheduler
    assert (warm_up.end, steps.end, steps.milestones, cfg.train_cfg.max_epochs) == (500, 12, [9, 11], 12)
    assert cfg.train_cfg.val_interval == cfg.default_hooks.checkpoint.interval == 1
    set_length(cfg, 1, 'epochs')
    assert cfg.param_scheduler[1].milestones == [] and cfg.param_scheduler[1].end == 1
    set_length(cfg := read_config('xcit_s12_p16_imagenet'), 30, 'epochs')
    assert [(part.end, part.get('T_max')) for part in cfg.param_scheduler] == [(3, None), (30, 30)]
    # of iterations there are at least as many validations as before, if it has as many
    for length, warm_up in ((1, 2), (7, 2), (8000, 800), (200000, 1500)):
        cfg = read_config('upernet_xcit_s12_p16_ade20k')
        set_length(cfg, length, 'iterations')
        assert [part.end for part in cfg.param_scheduler] == [warm_up, length] and cfg.train_cfg.max_iters == length
        assert length // cfg.train_cfg.val_interval >= min(10, length)
        assert length // cfg.default_hooks.checkpoint.interval >= min(20, length)


@pytest.mark.parametrize('key, length, loop, saving, wanted', (
    # a tenth of 1,000 iterations becomes one of 400
    ('max_iters', 400, (100, 300, [(600, 50)]), dict(interval=200, by_epoch=False), (40, 120, [(240, 20)], 80)),
    # intervals of epochs stay, up to the length of the run
    ('max_epochs', 4, (2, 500, [(750, 9)]), dict(interval=5), (2, 2, [(3, 9)], 4)),
    ('max_epochs', 4, (2, 500, [(750, 9)]), dict(interval=5, by_epoch=False), (2, 2, [(3, 9)], 5)),
    # at the end alone, as before
    ('max_iters', 400, (5000, 2000, []), dict(interval=5), (5000, 400, [], 5))))
def test_intervals_of_validations_and_checkpoints(key, length, loop, saving, wanted):
    interval, begin, dynamic = loop
    cfg = config([], **{key: 1000}, val_interval=interval, val_begin=begin, dynamic_intervals=dynamic)
    cfg.default_hooks = dict(checkpoint=saving)
    set_length(cfg, length, 'iterations' if key == 'max_iters' else 'epochs', epoch_length=7)
    got, interval = cfg.train_cfg, cfg.default_hooks.checkpoint.interval
    assert (got[key], got.val_interval, got.val_begin, got.dynamic_intervals, interval) == (length, *wanted)


def test_a_warm_up_is_told_by_the_data(demo_data):
    """Six images in batches of two: 200 epochs have 600 iterations, and 50 of them are less than a tenth."""
    for epochs, warm_up in ((200, 50), (20, 6), (400, 50)):
        cfg = load_config(TINY_CONFIG, data_root=str(demo_data))
        cfg.train_cfg.max_epochs = cfg.param_scheduler[1].end = 300
        set_length(cfg, epochs, 'epochs')
        assert [part.end for part in cfg.param_scheduler] == [warm_up, epochs]


def test_the_schedule_of_yolox():
    """Warm-up, cosine, constant, and the switch of hook and validation, each by its place in the run."""
    parts = [dict(type='mmdet.QuadraticWarmupLR', begin=0, end=5, convert_to_iter_based=True),
             dict(type='CosineAnnealingLR', begin=5, T_max=285, end=285),
             dict(type='ConstantLR', begin=285, end=300)]
    hooks = [dict(type='YOLOXModeSwitchHook', num_last_epochs=15),
             dict(type='PipelineSwitchHook', switch_epoch=280, switch_pipeline=[dict(type='A', max_iters=3)]),
             dict(type='EMAHook', begin_epoch=30, momentum=1e-4),
             dict(type='SwitchRecipeHook', schedule=[dict(action_epoch=150)])]
    cfg = config(parts, hooks, max_epochs=300, val_interval=10, dynamic_intervals=[(285, 1)])
    set_length(cfg, 100, 'epochs')
    assert [(p.get('begin'), p.end) for p in cfg.param_scheduler] == [(0, 5), (5, 95), (95, 100)]
    assert cfg.param_scheduler[1].T_max == 95 and cfg.train_cfg.dynamic_intervals == [(95, 1)]
    switch, pipeline, average, recipe = cfg.custom_hooks
    assert (switch.num_last_epochs, pipeline.switch_epoch, average.begin_epoch, recipe.schedule[0].action_epoch) == (
        5, 93, 10, 50) and cfg.train_cfg.val_interval == 10
    set_length(cfg, 1, 'epochs')
    assert [(p.get('begin'), p.end) for p in cfg.param_scheduler] == [(0, 1), (0, 1), (0, 1)]  # none of no length


@pytest.mark.parametrize('before, after', (
    (dict(type='StepLR', step_size=10), dict(step_size=5)),
    (dict(type='OneCycleLR', eta_max=1., total_steps=100), dict(total_steps=50)),
    (dict(type='CosineRestartLR', periods=[40, 60]), dict(periods=[20, 30])),
    (dict(type='CosineAnnealingLR', begin=20, end=100, T_max=80), dict(begin=10, end=50, T_max=40)),
    (dict(type='LinearLR', begin=0, end=100), dict(end=50)),  # over the whole run: no warm-up
    (dict(type='MultiStepLR', milestones=[3000, 6000], by_epoch=False), dict(milestones=[1500, 3000])),
    (dict(type='MultiStepLR', milestones=[1, 99, 100]), dict(milestones=[1])),
    (dict(type='LinearLR', by_epoch=False, begin=0, end=float('inf')), {})))
def test_schedulers(before, after):
    cfg = config(before, max_epochs=100)
    set_length(cfg, 50, 'epochs')
    assert cfg.param_scheduler == {**before, **after}


def test_what_begins_after_a_warm_up_begins_where_it_ends():
    cfg = config([dict(type=kind, by_epoch=False, begin=begin, end=end) for kind, begin, end in (
        ('LinearLR', 0, 300), ('PolyLR', 300, 1000))], max_iters=1000)
    set_length(cfg, 100, 'iterations')
    assert [(part.begin, part.end) for part in cfg.param_scheduler] == [(0, 25), (25, 100)]  # a quarter at most


@pytest.mark.parametrize('path, unit, length, key, wanted', (
    (TINY_CONFIG, 'iterations', 31, 'max_epochs', (11, 16, 31)),
    (TINY_SEG_CONFIG, 'epochs', 30, 'max_iters', (90, 60, 30))))
def test_the_other_unit_is_converted(path, unit, length, key, wanted, demo_data, monkeypatch):
    """Six images in batches of two, of three, and of two in each of three processes: whole epochs."""
    def changed(**settings):
        settings = Settings(**{unit: length}, **settings)
        return load_config(path, data_root=str(demo_data), settings=settings).train_cfg[key]

    assert (changed(), changed(batch_size=3)) == wanted[:2]
    for size in ('WORLD_SIZE', 'SLURM_STEP_NUM_TASKS', 'OMPI_COMM_WORLD_SIZE'):
        with monkeypatch.context() as patch:
            patch.setenv(size, '3')
            assert changed() == wanted[2]


def test_the_length_of_an_epoch(demo_data, tmp_path):
    """That of a list of images counts, as where some are held out; an unknown one is not converted."""
    (tmp_path / 'train.txt').write_text('000000000001.jpg\n000000000002.jpg\n')
    cfg = load_config(TINY_SEG_CONFIG, data_root=str(demo_data))
    cfg.train_dataloader.dataset.ann_file = str(tmp_path / 'train.txt')
    set_length(cfg, 30, 'epochs')
    assert cfg.train_cfg.max_iters == 30
    cfg, elsewhere = load_config(TINY_CONFIG, data_root=str(demo_data)), load_config(TINY_CONFIG)
    inner = cfg.train_dataloader.dataset
    twice = dict(type='RepeatDataset', times=2, dataset=inner)
    for dataset in (dict(type='ClassBalancedDataset', oversample_thr=1., dataset=inner), dict(inner, indices=4),
                    dict(type='ConcatDataset', datasets=[twice, inner]), inner):
        cfg.train_dataloader.dataset = dataset
        cfg.train_dataloader.num_batch_per_epoch = 2 if dataset is inner else None
        with pytest.raises(ConfigError, match='--iterations: this config counts epochs.*Use --epochs N$'):
            set_length(cfg, 30, 'iterations')
    cfg.train_dataloader.dataset, cfg.train_dataloader.num_batch_per_epoch = twice, None  # 3 iterations each
    set_length(cfg, 30, 'iterations')
    assert cfg.train_cfg.max_epochs == 5
    with pytest.raises(DataError, match='Set --data-root DIR'):  # that is what is missing
        set_length(elsewhere, 30, 'iterations')
    pytest.importorskip('mmpretrain')
    cfg = load_config(TINY_DINO_CONFIG, data_root=str(demo_data))
    set_length(cfg, 31, 'iterations')
    assert cfg.train_cfg.max_epochs == 4  # 27 of 47 images, not label maps and those for validation, three at a time


def test_checkpoints_follow_the_validations_that_they_were_saved_with():
    for loop, saving, after in ((dict(max_epochs=9), 1, 3), (dict(max_epochs=9, val_interval=2), 2, 3),
                                (dict(max_epochs=9, val_interval=2), 1, 1), (dict(max_iters=9), 1000, 1000)):
        cfg = Config(dict(train_cfg=loop, default_hooks=dict(checkpoint=dict(interval=saving))))
        set_val_interval(cfg, 3)
        assert cfg.train_cfg.val_interval == 3 and cfg.default_hooks.checkpoint.interval == after
