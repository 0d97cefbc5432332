"""Settings that users change in almost every run: everything that depends on them changes too, and is logged."""
import pytest
from torch.utils.data import DataLoader

from helpers.paths import TINY_CONFIG, TINY_SEG_CONFIG
from helpers.recipes import LOADABLE
from xcit_dense.config import settings as module
from xcit_dense.config.catalog import find_config
from xcit_dense.config.loading import load_config, read_config
from xcit_dense.config.settings import Settings, apply_settings
from xcit_dense.errors import ConfigError

DETECTOR, SEGMENTOR, CLASSIFIER = 'maskrcnn_xcit_s12_p16_coco', 'upernet_xcit_s12_p16_ade20k', 'xcit_s12_p16_custom'
LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')


@pytest.fixture
def said(monkeypatch):
    """What is logged."""
    lines = []
    monkeypatch.setattr(module, 'print_log', lambda text, **_: lines.append(text))
    return lines


def changed(name, given=(), **settings):
    cfg = read_config(name)
    apply_settings(cfg, Settings(**settings), given)
    return cfg


@pytest.mark.parametrize('name', LOADABLE)
def test_every_config_takes_them(name, said):
    """And the log has every key that changed."""
    unit = 'epochs' if 'max_epochs' in read_config(name).train_cfg else 'iterations'
    cfg = changed(name, image_size=448, batch_size=4, lr=0.25, workers=5, **{unit: 10})
    before = read_config(name)
    assert cfg.train_dataloader.batch_size == 4 and cfg.optim_wrapper.optimizer.lr == 0.25
    loaders = [cfg[loader] for loader in LOADERS if cfg.get(loader)]
    assert {loader.num_workers for loader in loaders} == {5}
    assert cfg.train_cfg['max_epochs' if unit == 'epochs' else 'max_iters'] == 10
    assert all('448' in repr(loader.dataset.pipeline) for loader in (loaders[0], loaders[-1]))
    told, = said
    keys = [line.split()[0] for line in told.splitlines()[1:]]
    for key in keys:  # put back
        node, old = cfg, before
        *way, last = [int(part) if part.isdigit() else part for part in key.split('.')]
        for part in way:
            node, old = node[part], old[part]
        node[last] = old[last]
    assert {key: cfg[key] for key in cfg if key in module._PARTS} == {
        key: before[key] for key in before if key in module._PARTS}


def test_nothing_given_changes_nothing(said):
    assert changed(DETECTOR)._cfg_dict == read_config(DETECTOR)._cfg_dict
    cfg = read_config(SEGMENTOR)
    same = changed(SEGMENTOR, image_size=512, iterations=cfg.train_cfg.max_iters, batch_size=2, lr=6e-5, workers=2)
    assert same._cfg_dict == cfg._cfg_dict and len(said) == 1 and 'already' in said[0]


@pytest.mark.parametrize('size, factor', ((8, 4), (1, 0.5)))
def test_the_rate_follows_the_batch_size(size, factor, said):
    cfg = changed(CLASSIFIER, batch_size=64 * factor if factor > 1 else 32)
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(3e-5 * (factor if factor > 1 else 0.5))
    cfg, before = changed(DETECTOR, batch_size=size), read_config(DETECTOR)
    assert cfg.optim_wrapper.optimizer.lr == before.optim_wrapper.optimizer.lr * factor
    assert cfg.optim_wrapper.paramwise_cfg == before.optim_wrapper.paramwise_cfg
    # the same as mmengine's own scaling makes of it
    assert cfg.auto_scale_lr.base_batch_size == 16 * factor
    assert 'optim_wrapper.optimizer.lr' in said[-1]


def test_what_ends_at_a_rate_follows_it(said):
    cfg = changed('maskrcnn_xcit_n12_p16_small', lr=5e-4)
    assert cfg.param_scheduler[1].eta_min == pytest.approx(5e-7) and cfg.param_scheduler[0].start_factor == 0.01
    assert changed('maskrcnn_xcit_n12_p16_small', batch_size=4).param_scheduler[1].eta_min == pytest.approx(5e-7)


@pytest.mark.parametrize('settings, given', ((dict(auto_scale_lr=True), ()), (dict(lr=1e-4), ()),
                                             ({}, ('optim_wrapper.optimizer.lr', ))))
def test_a_rate_is_scaled_by_nobody_or_once(settings, given, said):
    """By mmengine, or not at all if the user set it."""
    cfg = changed(DETECTOR, given, batch_size=8, **settings)
    assert cfg.optim_wrapper.optimizer.lr == 1e-4 and cfg.auto_scale_lr.base_batch_size == 16
    cfg = read_config(DETECTOR)
    cfg.auto_scale_lr.enable = True
    apply_settings(cfg, Settings(batch_size=8, **settings), given)
    assert cfg.optim_wrapper.optimizer.lr == 1e-4
    assert cfg.auto_scale_lr.enable == ('lr' not in settings)


@pytest.mark.parametrize('by', (dict(settings=Settings(workers=0)),
                                dict(cfg_options={f'{loader}.num_workers': 0 for loader in LOADERS})))
def test_loaders_without_workers_have_none_of_their_settings(by, tmp_path):
    """By the option and by the key alone: torch would reject the others."""
    config = tmp_path / 'own.py'
    config.write_text(f"_base_ = '{find_config(DETECTOR)}'\ntrain_dataloader = dict(prefetch_factor=4)\n")
    cfg = load_config(config, **by)
    for loader in LOADERS:
        given = {key: cfg[loader][key] for key in cfg[loader] if 'workers' in key or 'prefetch' in key}
        assert DataLoader(range(3), **given).num_workers == 0
    assert all(load_config(TINY_CONFIG, settings=Settings(workers=2))[loader].persistent_workers for loader in LOADERS)


def test_a_test_has_a_batch_size_of_its_own():
    """Nothing of the training changes."""
    cfg, before = load_config(DETECTOR, settings=Settings(batch_size=5), tested=True), load_config(DETECTOR)
    assert cfg.test_dataloader.batch_size == 5 != before.test_dataloader.batch_size
    cfg.test_dataloader.batch_size = before.test_dataloader.batch_size
    assert cfg.to_dict() == before.to_dict()


@pytest.mark.parametrize('settings, words', (
    (dict(image_size=[0]), '--image-size .*got 0'), (dict(image_size=[1, 2, 3]), '--image-size .*got 1 2 3'),
    (dict(epochs=0), '--epochs .*got 0'), (dict(epochs=-3), '--epochs .*got -3'), (dict(lr=-1), '--lr .*got -1'),
    (dict(lr=float('nan')), '--lr .*nan'), (dict(workers=-1), '--workers .*got -1'),
    (dict(batch_size=0), '--batch-size .*got 0'), (dict(augment='much'), "light or strong, got 'much'"),
    (dict(lr=1., auto_scale_lr=True), '--auto-scale-lr'), (dict(iterations=50), 'counts epochs.*Use --epochs')))
def test_values_that_cannot_be(settings, words):
    with pytest.raises(ConfigError, match=words):
        changed(DETECTOR, **settings)


@pytest.mark.parametrize('change, settings, words', (
    (dict(train_cfg=dict(_delete_=True, type='Mine')), dict(epochs=2), 'train_cfg'),
    ({'train_dataloader.batch_size': None}, dict(batch_size=2), 'batch_sampler'),
    ({'optim_wrapper.optimizer.lr': None}, dict(lr=2.), 'no learning rate'),
    ({'optim_wrapper': dict(a=dict(optimizer=dict(type='SGD', lr=1)), b=dict(optimizer=dict(type='SGD', lr=1)))},
     dict(lr=2.), '3 optimizers|2 optimizers'),
    (dict.fromkeys([f'{loader}.dataset.pipeline' for loader in LOADERS], [dict(type='Mine')]), dict(image_size=64),
     'has Mine.*test_dataloader')))
def test_where_nothing_is_known_to_change(change, settings, words):
    cfg = read_config(DETECTOR)
    for key, value in change.items():
        cfg.merge_from_dict({key: value})
    with pytest.raises(ConfigError, match=words):
        apply_settings(cfg, Settings(**settings))


@pytest.mark.parametrize('options, settings', (
    ({'train_cfg.max_epochs': 5}, dict(epochs=4)), ({'train_dataloader.batch_size': 5}, dict(batch_size=3)),
    ({'train_dataloader.num_workers': 1}, dict(workers=3)), ({'optim_wrapper.optimizer.lr': 5.}, dict(lr=3.)),
    ({'test_dataloader.dataset.pipeline.1.scale': (64, 64)}, dict(image_size=96))))
def test_a_key_that_is_set_twice(options, settings):
    with pytest.raises(ConfigError, match=f'{next(iter(options))}.*--{next(iter(settings)).replace("_", "-")}'):
        load_config(TINY_CONFIG, cfg_options=options, settings=Settings(**settings))
    beside = dict(cfg_options={'model.backbone.drop_path_rate': 0.1}, settings=Settings(**settings))
    assert load_config(TINY_CONFIG, **beside).model.backbone.drop_path_rate == 0.1


def test_every_change_is_a_line_of_one_block(demo_data, said):
    load_config(TINY_SEG_CONFIG, data_root=demo_data, settings=Settings(iterations=8, batch_size=4))
    title, *lines = said[0].splitlines()
    assert '--iterations 8, --batch-size 4' in title and len(said) == 1
    assert [line.split() for line in lines if 'max_iters' in line or '.batch_size' in line] == [
        ['train_dataloader.batch_size', '2', '->', '4'], ['train_cfg.max_iters', '4', '->', '8']]


def test_one_process_of_several_says_it(said, monkeypatch):
    monkeypatch.setenv('RANK', '1')
    changed(DETECTOR, lr=1.)
    assert not said




def test_the_log_is_short_and_says_where_nothing_changes(capsys):
    """Lists of scales are one line each, rates are rounded."""
    apply_settings(read_config('maskrcnn_xcit_s12_p16_coco'), Settings(image_size=640, batch_size=3))
    said = capsys.readouterr().out.splitlines()
    assert len(said) < 14 and all(len(line) < 260 for line in said)
    assert any(line.endswith('0.0001 -> 0.00015') for line in said)
    apply_settings(read_config('semfpn_xcit_t12_p16_finetune'), Settings(augment='strong'))
    assert '--augment strong' in (said := capsys.readouterr().out) and 'already' in said
    apply_settings(read_config('semfpn_xcit_t12_p16_finetune'), Settings(auto_scale_lr=True))
    assert not capsys.readouterr().out
