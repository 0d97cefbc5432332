"""Settings that users change in almost every run, and all that depends on them: rates, batches, the length of a run."""
import pytest
from mmengine.config import Config
from torch.utils.data import DataLoader

from helpers.paths import SMALL_CONFIG, TINY_CONFIG, TINY_DINO_CONFIG, TINY_SEG_CONFIG
from helpers.recipes import LOADABLE
from helpers.refusals import stock
from xcit_dense.config import image_size
from xcit_dense.config import settings as module
from xcit_dense.config.check.keys import differences
from xcit_dense.config.length import set_length, set_val_interval
from xcit_dense.config.loading import load_config, read_config
from xcit_dense.config.own import ACCUMULATED
from xcit_dense.config.settings import Settings, apply_settings
from xcit_dense.errors import ConfigError, DataError

DETECTOR, SEGMENTOR, CLASSIFIER = 'maskrcnn_xcit_s12_p16_coco', 'upernet_xcit_s12_p16_ade20k', 'xcit_s12_p16_custom'
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


@pytest.fixture
def said(logged):
    return logged(module)


def changed(name, given=(), **settings):
    cfg = read_config(name)
    apply_settings(cfg, Settings(**settings), given)
    return cfg


@pytest.mark.parametrize('name', [name for name in LOADABLE if '_p8' not in name])
def test_every_config_takes_them(name, said):
    """And the log has every key that changed."""
    before = read_config(name)
    unit, key = ('epochs', 'max_epochs') if 'max_epochs' in before.train_cfg else ('iterations', 'max_iters')
    cfg = changed(name, image_size=448, batch_size=4, lr=0.25, workers=5, **{unit: 10})
    assert cfg.train_dataloader.batch_size == 4 and cfg.optim_wrapper.optimizer.lr == 0.25 and cfg.train_cfg[key] == 10
    loaders = [cfg[loader] for loader in LOADERS if cfg.get(loader)]
    assert all(loader.num_workers == 5 and '448' in repr(loader.dataset.pipeline) for loader in loaders)
    told, = said
    for line in told.splitlines()[1:]:  # put back
        node, old = cfg, before
        *way, last = [int(part) if part.isdigit() else part for part in line.split()[0].split('.')]
        for part in way:
            node, old = node[part], old[part]
        node[last] = old[last]
    assert {key: cfg[key] for key in cfg if key in module.PARTS} == {
        key: before[key] for key in before if key in module.PARTS}


@pytest.mark.parametrize('framework', ('mmdet', 'mmseg'))
def test_data_of_the_frameworks_takes_an_image_size(framework):
    if not stock(framework).is_dir():
        pytest.skip(f'no configs of {framework}')
    for path in stock(framework, '_base_/datasets').glob('*.py'):
        cfg = Config.fromfile(path, import_custom_modules=False)
        cfg.default_scope = framework
        if path.stem != 'levir_256x256':  # which resizes nothing
            apply_settings(cfg, Settings(image_size=480))
            assert not cfg.get('test_dataloader') or image_size.test_size_of(cfg) == [480], path


def test_nothing_given_changes_nothing(said):
    assert changed(DETECTOR)._cfg_dict == read_config(DETECTOR)._cfg_dict
    cfg = read_config(SEGMENTOR)
    same = changed(SEGMENTOR, image_size=512, iterations=cfg.train_cfg.max_iters, batch_size=2, lr=6e-5, workers=2)
    assert same._cfg_dict == cfg._cfg_dict and len(said) == 1 and 'already' in said[0]


def test_the_rate_follows_the_batch_size(said):
    for size, factor in ((8, 4), (1, 0.5)):
        cfg = changed(CLASSIFIER, batch_size=int(64 * factor))
        assert cfg.optim_wrapper.optimizer.lr == pytest.approx(3e-5 * factor)
        cfg, before = changed(DETECTOR, batch_size=size), read_config(DETECTOR)
        assert cfg.optim_wrapper.optimizer.lr == before.optim_wrapper.optimizer.lr * factor
        assert cfg.optim_wrapper.paramwise_cfg == before.optim_wrapper.paramwise_cfg
        assert cfg.auto_scale_lr.base_batch_size == 16 * factor  # as mmengine's own scaling makes of it
        assert 'optim_wrapper.optimizer.lr' in said[-1]
    cfg = read_config(DETECTOR)
    cfg.param_scheduler = [dict(type='OneCycleLR', eta_max=2.), dict(type='CosineAnnealingMomentum', eta_max=3.),
                           dict(type='CosineAnnealingParamScheduler', param_name='weight_decay', eta_max=4.)]
    apply_settings(cfg, Settings(lr=5e-4))
    assert [part.eta_max for part in cfg.param_scheduler] == [pytest.approx(10), 3, 4]
    for settings in (dict(lr=5e-4), dict(batch_size=4)):
        warm_up, cosine = changed('maskrcnn_xcit_n12_p16_small', **settings).param_scheduler
        assert cosine.eta_min == pytest.approx(5e-7) and warm_up.start_factor == 0.01
    # by mmengine, or not at all if the user set it
    for settings, *given in ((dict(auto_scale_lr=True), ), (dict(lr=1e-4), ), ({}, 'optim_wrapper.optimizer.lr')):
        cfg = changed(DETECTOR, given, batch_size=8, **settings)
        assert cfg.optim_wrapper.optimizer.lr == 1e-4 and cfg.auto_scale_lr.base_batch_size == 16
        cfg = read_config(DETECTOR)
        cfg.auto_scale_lr.enable = True
        apply_settings(cfg, Settings(batch_size=8, **settings), given)
        assert cfg.optim_wrapper.optimizer.lr == 1e-4
        assert cfg.auto_scale_lr.enable == ('lr' not in settings)


def test_accumulated_batches_are_one_for_the_rate(own):
    """Two images four times are the eight of the recipe. A file with a batch or a rate has them for its own steps."""
    steps, batch = 'optim_wrapper = dict(accumulative_counts=4)', 'train_dataloader = dict(batch_size=2)'
    for text, given, size, factor in (('', {ACCUMULATED: 4}, 2, 1), (steps, {}, 2, 1), (steps, {}, 8, 4),
                                      ('', {ACCUMULATED: 4}, 8, 4), (f'{steps}\n{batch}', {}, 4, 2)):
        before = load_config(own(text, SMALL_CONFIG))
        cfg = load_config(own(text, SMALL_CONFIG), cfg_options=given, settings=Settings(batch_size=size))
        assert cfg.optim_wrapper.optimizer.lr == pytest.approx(factor * before.optim_wrapper.optimizer.lr), (text, size)


def test_loaders_without_workers_have_none_of_their_settings(own):
    """By the option and by the key alone: torch would reject the others."""
    config = own('train_dataloader = dict(prefetch_factor=4)')
    for by in (dict(settings=Settings(workers=0)),
               dict(cfg_options={f'{loader}.num_workers': 0 for loader in LOADERS})):
        cfg = load_config(config, **by)
        for loader in LOADERS:
            given = {key: cfg[loader][key] for key in cfg[loader] if 'workers' in key or 'prefetch' in key}
            assert DataLoader(range(3), **given).num_workers == 0
    assert all(load_config(TINY_CONFIG, settings=Settings(workers=1))[loader].persistent_workers for loader in LOADERS)


def test_a_test_has_a_batch_size_of_its_own():
    cfg, before = load_config(DETECTOR, settings=Settings(batch_size=5), tested=True), load_config(DETECTOR)
    assert cfg.test_dataloader.batch_size == 5 != before.test_dataloader.batch_size
    cfg.test_dataloader.batch_size = before.test_dataloader.batch_size
    assert cfg.to_dict() == before.to_dict()


@pytest.mark.parametrize('change, settings, words', (
    ({}, dict(image_size=[15]), '--image-size .*got 15'), ({}, dict(image_size=[64] * 3), 'size .*got 64 64 64'),
    ({}, dict(lr=-1), '--lr .*got -1'), ({}, dict(lr=float('nan')), '--lr .*nan'),
    ({}, dict(workers=-1), '--workers .*got -1'), ({}, dict(batch_size=0), '--batch-size .*got 0'),
    ({}, dict(lr=1., auto_scale_lr=True), '--auto-scale-lr'),
    # nothing is known to change
    (dict(train_cfg=dict(_delete_=True, type='Mine')), dict(epochs=2), 'train_cfg'),
    ({'train_dataloader.batch_size': None}, dict(batch_size=2), 'batch_sampler'),
    ({'optim_wrapper.optimizer.lr': None}, dict(lr=2.), 'no learning rate'),
    ({'optim_wrapper': dict(a=dict(optimizer=dict(type='SGD', lr=1)), b=dict(optimizer=dict(type='SGD', lr=1)))},
     dict(lr=2.), '3 optimizers'),
    (dict.fromkeys([f'{loader}.dataset.pipeline' for loader in LOADERS], [dict(type='Mine')]), dict(image_size=64),
     'no known step in the pipelines')))
def test_values_that_cannot_be_and_configs_that_cannot_change(change, settings, words):
    cfg = read_config(DETECTOR)
    for key, value in change.items():
        cfg.merge_from_dict({key: value})
    with pytest.raises(ConfigError, match=words):
        apply_settings(cfg, Settings(**settings))


def test_a_key_that_is_set_twice():
    twice = {'train_cfg.max_epochs': (5, '--epochs'), 'train_dataloader.batch_size': (5, '--batch-size'),
             'train_dataloader.num_workers': (1, '--workers'), 'optim_wrapper.optimizer.lr': (5., '--lr'),
             'test_dataloader.dataset.pipeline.1.scale': ((64, 64), '--image-size')}
    settings = Settings(epochs=4, batch_size=3, workers=3, lr=3., image_size=96)
    for key, (value, option) in twice.items():
        with pytest.raises(ConfigError, match=f'{key}.*{option}'):
            load_config(TINY_CONFIG, cfg_options={key: value}, settings=settings)
    beside = load_config(TINY_CONFIG, cfg_options={'model.backbone.drop_path_rate': 0.1}, settings=settings)
    assert beside.model.backbone.drop_path_rate == 0.1


def test_the_log_has_a_line_for_each_change(said, monkeypatch):
    """It is short: lists of scales are one line each, rates are rounded. One process of several logs it."""
    changed(DETECTOR, image_size=640, batch_size=3)
    title, *lines = said.pop().splitlines()
    assert '--image-size 640, --batch-size 3' in title and len(lines) < 14 and all(len(line) < 260 for line in lines)
    assert any(line.endswith('0.0001 -> 0.00015') for line in lines)
    changed(DETECTOR, augment='strong')
    assert 'CocoDataset: LoadImageFromFile' in said[0] and 'MultiImageMixDataset: CopyPaste' in said.pop()
    changed('semfpn_xcit_t12_p16_finetune', augment='strong')
    assert '--augment strong' in said[0] and 'already' in said.pop()
    monkeypatch.setenv('RANK', '1')
    changed(DETECTOR, lr=1.)
    assert not said


def test_differences_of_settings_by_key():
    """One more hook moves no other, but hooks of one type are told apart by their position."""
    before = "a = dict(b=[dict(c=1, d='x'), dict(c=2)])\nk = dict()\nm = [dict(n=1)]\n"
    after = "a = dict(b=[dict(c=1, d='y'), dict(c=2)])\nk = dict(l=5)\nm = []\n"
    assert differences(before, after) == {
        'a.b.0.d': ("'x'", "'y'"), 'k.l': ('not set', '5'), 'm': ("[{'n': 1}]", '[]')}
    for text in ('a = (', 'a = ' + '(' * 10000, 'import os\nos.abort()\n', 'a.b = 1', 'a = {**c}'):
        assert differences(text, after) == {}
    a, b, c = "dict(type='A', x=1)", "dict(type='B', y=1)", "dict(type='A', x=2)"
    for old, new, wanted in ((b, f'{a}, {b}', {'custom_hooks.A': ('not set', "{'type': 'A', 'x': 1}")}),
                             (f'{a}, {a}', f'{a}, {c}', {'custom_hooks.1.x': ('1', '2')})):
        assert differences(f'custom_hooks = [{old}]', f'custom_hooks = [{new}]') == wanted


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
    # what begins after a warm-up begins where it ends
    cfg = config([dict(type=kind, by_epoch=False, begin=begin, end=end) for kind, begin, end in (
        ('LinearLR', 0, 300), ('PolyLR', 300, 1000))], max_iters=1000)
    set_length(cfg, 100, 'iterations')
    assert [(part.begin, part.end) for part in cfg.param_scheduler] == [(0, 25), (25, 100)]  # a quarter at most


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
                                (dict(max_epochs=9, val_interval=2), 1, 1), (dict(max_iters=9), 1000, 1000),
                                (dict(max_iters=9), dict(interval=1000, by_epoch=False), 3)):
        saving = saving if isinstance(saving, dict) else dict(interval=saving)
        cfg = Config(dict(train_cfg=loop, default_hooks=dict(checkpoint=saving)))
        set_val_interval(cfg, 3)
        assert cfg.train_cfg.val_interval == 3 and cfg.default_hooks.checkpoint.interval == after
