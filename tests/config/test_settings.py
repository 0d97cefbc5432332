"""Settings that users change in almost every run: everything that depends on them changes too, and is logged."""
import pytest
from mmengine.config import Config
from torch.utils.data import DataLoader

from helpers.paths import SMALL_CONFIG, TINY_CONFIG
from helpers.recipes import LOADABLE
from helpers.refusals import stock
from xcit_dense.config import image_size
from xcit_dense.config import settings as module
from xcit_dense.config.check.keys import differences
from xcit_dense.config.loading import load_config, read_config
from xcit_dense.config.own import ACCUMULATED
from xcit_dense.config.settings import Settings, apply_settings
from xcit_dense.errors import ConfigError

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
        # the same as mmengine's own scaling makes of it
        assert cfg.auto_scale_lr.base_batch_size == 16 * factor
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
    assert all(load_config(TINY_CONFIG, settings=Settings(workers=2))[loader].persistent_workers for loader in LOADERS)


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
