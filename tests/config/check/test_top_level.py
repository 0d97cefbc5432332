"""Names at the top level of a config and of options: misspelt ones, those of version 2, late variables."""
import logging

import pytest
from mmengine.config import Config

from helpers.paths import SMALL_SEG_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from xcit_dense.config.check import check_config
from xcit_dense.config.check import keys as keys_module
from xcit_dense.config.check.top_level import check_top_level, find_new_keys, named, option_for
from xcit_dense.config.loading import load_config, read_config
from xcit_dense.errors import ConfigError

VERSION_2 = (
    ('checkpoint_config', 'default_hooks.checkpoint'), ('cudnn_benchmark', 'env_cfg'), ('data', 'train_dataloader'),
    ('dist_params', 'env_cfg.dist_cfg'), ('evaluation', 'val_evaluator'), ('fp16', 'AmpOptimWrapper'),
    ('log_config', 'default_hooks.logger'), ('lr_config', 'param_scheduler'), ('optimizer', 'optim_wrapper.optimizer'),
    ('optimizer_config', 'optim_wrapper.clip_grad'), ('resume_from', 'resume = True'), ('runner', 'train_cfg'),
    ('seed', 'randomness.seed'), ('total_epochs', 'train_cfg.max_epochs'), ('workflow', 'val_cfg'))


def names_of(lines):
    return [line.partition(' = ')[0] for line in lines]


def test_misspelt_top_level_keys(own, mistakes):
    line, = check_top_level(load_config(own('defualt_hooks = dict(a=1)\ndefault_hooks = None')))
    assert line == "defualt_hooks = {'a': 1}: nothing reads it; did you mean default_hooks?"
    # a number makes another name
    assert names_of(mistakes(load_config(own('modle = dict(a=1)\nmodel2 = 3')))) == ['modle']


def test_keys_of_version_2_name_their_place(own, hints):
    """Also next to the key that replaced one of them."""
    lines = [f"{name} = dict(name='{name}')" for name, _ in VERSION_2]
    check_config(load_config(own('\n'.join([*lines, 'optim_wrapper = dict(accumulative_counts=1)']))))
    assert names_of(hints) == [name for name, _ in VERSION_2]
    assert all('version 2' in line and place in line for line, (_, place) in zip(hints, VERSION_2, strict=True))


def test_variables_that_a_dump_holds_are_used_up(tmp_path, own, mistakes, hints):
    """As in mmseg's configs of Swin and BiSeNet: an optimizer that another one replaced, a list of heads."""
    base = own("models = dict(with_cp=True)\nmodel = dict(backbone=models)\noptimizer = dict(type='SGD', lr=0.01)\n"
               'optim_wrapper = dict(optimizer=optimizer)', name='base.py')
    cfg = load_config(own('model = dict(backbone=dict(with_cp=False))\noptim_wrapper = dict(_delete_=True, '
                          "type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-4))", base))
    assert not check_top_level(cfg)
    cfg.dump(tmp_path / 'dumped.py')
    check_config(load_config(own("launcher = 'pytorch'", tmp_path / 'dumped.py')))
    assert not hints
    based = own('fp16 = dict(loss_scale=512.)\nmodle = dict(a=1)', tmp_path / 'dumped.py')
    assert 'modle' in mistakes(load_config(based))[0] and names_of(hints) == ['fp16']


def test_a_variable_that_reaches_nothing_is_told(own):
    lines = "scale = (320, 320)\ndata_root = 'mine/'\nmax_iters = 30"
    found = check_top_level(load_config(own(lines, SMALL_SEG_CONFIG)))
    for name, *words in (('scale', '(192, 192) stays', 'train_dataloader.dataset.pipeline.2.scale',
                          'test_dataloader.dataset.pipeline.1.scale', '--image-size'),
                         ('data_root', "'data/folders/' stays", 'train_dataloader.dataset.data_root', '--data-root'),
                         ('max_iters', '700 stays', 'param_scheduler.1.end')):
        line, = (line for line in found if line.startswith(f'{name} = '))
        assert all(word in line for word in words)
    assert len(found) == 3
    for lines in (  # those that are used or done by hand are not
            'scale = (192, 192)\nmine = 3',  # as it was
            'scale = (320, 320)\ntest_dataloader = dict(dataset=dict(serialize_data=scale == 3))',  # it knows
            'max_iters = 30\nparam_scheduler = [dict(type="PolyLR", by_epoch=False, begin=0, end=30)]'):  # by hand
        assert not check_top_level(load_config(own(lines, TINY_SEG_CONFIG))), lines
    options = {'param_scheduler.1.end': 30, 'train_cfg.max_iters': 30}
    assert not check_top_level(load_config(own('max_iters = 30', TINY_SEG_CONFIG), cfg_options=options))


def test_a_variable_in_several_keys_and_a_list_of_steps(own):
    """The keys that still hold the value of the base are named; what a formula makes of it is not known."""
    base = own("num_classes = 5\nsteps = [dict(type='A')]\nmodel = dict(roi_head=dict(bbox_head=dict(num_classes="
               'num_classes), mask_head=dict(num_classes=num_classes), note=num_classes * 2))\n'
               'visualizer = dict(steps=steps)', name='base.py')
    lines = check_top_level(load_config(own("num_classes = 7\nsteps = [dict(type='B')]", base)))
    assert len(lines) == 2
    for key in ('model.roi_head.bbox_head.num_classes', 'model.roi_head.mask_head.num_classes', 'visualizer.steps'):
        assert key in ''.join(lines)
    found, = check_top_level(load_config(own(
        'num_classes = 7\nmodel = dict(roi_head=dict(bbox_head=dict(num_classes=7)))', base)))
    assert 'mask_head' in found and 'bbox_head' not in found  # what is left


def test_options_for_variables_name_what_is_meant():
    for option, value, *words in (
            ('max_iters', 5, 'param_scheduler.1.end'), ('scale', (8, 8), 'pipeline.2.scale', '--image-size'),
            ('lr', 0.1, '--lr'), ('batch_size', 4, '--batch-size'), ('max_epochs', 4, '--epochs'),
            ('data_root', 'a', '--data-root'), ('unheard', 1, 'no framework reads it')):
        line = find_new_keys(read_config(SMALL_SEG_CONFIG), {option: value})[option]
        assert all(word in line for word in words), line
    assert named(['a', 'b', 'c', 'd.lr']) == 'a, b, c, d.lr' and ' and 1 more' in named('abcde')
    hooks = dict(ValLoss='--val-loss', Loggers='--log', EarlyStopping='--patience', Compile='--compile', EMA='')
    assert {kind: option_for(f'custom_hooks.{kind}Hook.x') for kind in hooks} == hooks
    for option, keys in {
            '--image-size': 'img_size crop_size model.data_preprocessor.size', '--amp': 'optim_wrapper.type',
            '--iterations': 'max_iters train_cfg.max_iters', '--epochs': 'epochs train_cfg.max_epochs',
            '--lr': 'learning_rate optim_wrapper.a.optimizer.lr', '--batch-size': 'train_dataloader.batch_size',
            '--workers': 'num_workers test_dataloader.persistent_workers', '': 'val_dataloader.batch_size'}.items():
        assert {option_for(key) for key in keys.split()} == {option}


def test_options_that_cannot_have_an_effect():
    cfg = Config.fromfile(TINY_CONFIG)
    assert not find_new_keys(cfg, {
        'model.backbone.with_cp': True, 'randomness.seed': 1, 'optim_wrapper.optimizer.betas': (0, 1),
        'optim_wrapper.paramwise_cfg.custom_keys.norm1.lr_mult': 2, 'classes_from_data': False,
        'param_scheduler.0.end': 3, 'load_from._delete_': True, 'load_from.x': 1})
    assert not find_new_keys(cfg, None)
    # numbered names are two
    assert not find_new_keys(Config(dict(env_cfg=dict(mp_cfg=dict(stage_1=1)))), {'env_cfg.mp_cfg.stage_2': 2})
    for option, value, *words in (
            ('max_epochs', 5, 'max_epochs = 5: ', 'variable'), ('modle.backbone', 1, 'did you mean model?'),
            ('env_cfg.mp_cfg.opencv_num_thread', 1, 'did you mean opencv_num_threads?'),
            # mmengine ends with a traceback when it merges these
            ('param_scheduler.2.end', 3, 'param_scheduler.2.end = 3: param_scheduler is [{'),
            ('model.neck.in_channels.0', 8, 'model.neck.in_channels.0 = 8: model.neck.in_channels is [32, '),
            ('train_dataloader.batch_size.x', 3, 'train_dataloader.batch_size.x = 3: ',
             'train_dataloader.batch_size is 2')):
        line, = find_new_keys(cfg, {option: value}).values()
        assert all(word in line for word in words), line


def test_an_option_that_a_hook_of_ones_own_may_read_is_applied(hints, own):
    """And a key that the file has for it, unless the file uses it for something else."""
    path = own('my_threshold = 1\nmy_epochs = 3\ntrain_cfg = dict(max_epochs=my_epochs)')
    cfg = load_config(path, cfg_options={'my_key': 3, 'my_part.key': 4, 'my_threshold': 2}, check=True)
    assert (cfg.my_key, cfg.my_part.key, cfg.my_threshold) == (3, 4, 2)
    assert [line.partition(' = ')[0] for line in hints] == ['my_key', 'my_part.key', 'my_threshold']
    with pytest.raises(ConfigError, match='1 mistake .*\n.*my_epochs = 5.*variable'):
        load_config(path, cfg_options={'my_epochs': 5})


def test_findings_can_be_warnings(monkeypatch):
    said = []
    monkeypatch.setattr(keys_module, 'print_log', lambda text, **how: said.append((text, how)))
    options = {'modle.backbone': 1, 'param_scheduler.9.end': 3, 'model.neck.num_out': 4,
               'train_dataloader.batch_size': 0}
    with pytest.raises(ConfigError, match='4 mistakes'):
        load_config(TINY_CONFIG, cfg_options=options, check=True)
    with pytest.raises(ConfigError, match='3 mistakes'):  # by the tools that do not train
        load_config(TINY_CONFIG, cfg_options=options)
    cfg = load_config(TINY_CONFIG, cfg_options=options, check=True, findings='warn')
    (text, how), = said
    assert how['level'] == logging.WARNING and text.startswith('4 mistakes') and 'did you mean num_outs?' in text
    assert 'modle' not in cfg and cfg.model.neck.num_out == 4
