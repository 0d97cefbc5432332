"""What is none of the config's faults, and what users write that the frameworks take: no finding."""
import functools
import socket

import pytest
import torch
from mmengine.hooks import LoggerHook
from mmengine.registry import HOOKS, MODELS, RUNNERS, DefaultScope
from mmengine.runner import Runner
from torch.utils._pytree import tree_leaves

from helpers.paths import TINY_CONFIG
from xcit_dense.config.check import check_config
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError
from xcit_dense.train.randomness import random_state


def test_a_check_leaves_nothing_behind():

    def state():
        scope = DefaultScope.get_current_instance()
        return [scope and scope.scope_name, *(x.tolist() if isinstance(x, torch.Tensor) else x
                                              for x in tree_leaves(random_state()))]

    cfg = load_config(TINY_CONFIG)
    before = state()
    check_config(cfg)
    assert state() == before


def test_what_is_not_the_configs_fault_is_no_finding():
    """Constructors that miss a package, a file, the network or other processes: the run itself says it."""

    def fails(error):

        @MODELS.register_module(name='Fails', force=True)
        class Fails(torch.nn.Module):
            def __init__(self):
                raise error

        cfg = load_config(TINY_CONFIG)
        cfg.model.neck = dict(type='Fails')
        check_config(cfg)

    try:
        for error in (ImportError('No module named x'), FileNotFoundError('x'), RuntimeError('x'),
                      AssertionError('please install x'), ValueError('Default process group has not been initialized')):
            fails(error)
        with pytest.raises(ConfigError, match='model.neck: three are needed'):
            fails(ValueError('three are needed'))
    finally:
        MODELS.module_dict.pop('Fails')


def test_a_class_that_hides_its_arguments_has_no_finding():

    @HOOKS.register_module(name='HidingHook')
    class HidingHook:
        def __init__(self, **options):
            self.__dict__.update(options)

    try:
        check_config(load_config(TINY_CONFIG, cfg_options=dict(custom_hooks=[dict(type='HidingHook', anything=1)])))
    finally:
        HOOKS.module_dict.pop('HidingHook')


@functools.lru_cache
def shared_encoder():
    return torch.nn.Linear(2, 2)


class SharingNeck(torch.nn.Module):
    """Has an ``embed_dim`` of its own meaning, and a part that all its kind share."""

    def __init__(self, embed_dim):
        super().__init__()
        self.encoder = shared_encoder()
        self.maps = torch.nn.ModuleList([torch.nn.Conv2d(32, 64, 1) for _ in range(4)])

    def forward(self, maps):
        maps = [layer(x) for layer, x in zip(self.maps, maps, strict=True)]
        return [*maps, torch.nn.functional.max_pool2d(maps[-1], 2)]


class ReadingNeck(SharingNeck):
    """Reads a tensor that has no memory in the check."""

    def __init__(self, embed_dim):
        super().__init__(embed_dim)
        self.rates = [float(x) for x in torch.empty(4).fill_(0.1)]


class OwnLoggerHook(LoggerHook):
    def __init__(self, **kwargs):
        self.own = kwargs.pop('intervals', None)
        super().__init__(**kwargs)


class OwnRunner(Runner):
    """Reads ``cfg.model_wrappers_cfg``."""


@pytest.fixture
def registered():
    """Classes of a user's own, registered for a test."""
    kinds = ((MODELS, SharingNeck), (MODELS, ReadingNeck), (MODELS, AskingNeck), (HOOKS, OwnLoggerHook),
             (RUNNERS, OwnRunner))
    for registry, kind in kinds:
        registry.register_module(module=kind)
    yield
    for registry, kind in kinds:
        registry.module_dict.pop(kind.__name__)


def test_what_users_own_classes_take_is_no_finding(registered):
    cfg = load_config(TINY_CONFIG)
    cfg.model.neck = dict(type='SharingNeck', embed_dim=48)
    cfg.custom_hooks = [dict(type='OwnLoggerHook', intervals=3)]
    cfg.runner_type, cfg._cfg_dict['model_wrappers_cfg'] = 'OwnRunner', dict(a=1)
    cfg.param_scheduler = [dict(type='LinearParamScheduler', param_name='eps', start_factor=0.5)]
    check_config(cfg)
    assert shared_encoder().weight.device.type == 'cpu'  # what the check builds is not what the run gets


@pytest.mark.parametrize('neck', ('SharingNeck', 'ReadingNeck'))
def test_shapes_are_compared_behind_users_own_classes(neck, registered):
    cfg = load_config(TINY_CONFIG)
    cfg.model.neck, cfg.model.rpn_head.in_channels = dict(type=neck, embed_dim=48), 32
    with pytest.raises(ConfigError, match='model.rpn_head.in_channels = 32: the neck gives 64; set it to 64'):
        check_config(cfg)


class AskingNeck(SharingNeck):
    """Fetches something in its forward, as if it were the first."""

    def forward(self, maps):
        socket.getaddrinfo('localhost', 80)


def test_a_forward_that_asks_the_network_hides_no_finding(registered):
    cfg = load_config(TINY_CONFIG)
    cfg.model.neck = dict(type='AskingNeck', embed_dim=48)
    check_config(cfg)
    cfg.model.rpn_head.in_chanels = 3
    with pytest.raises(ConfigError, match='one thing .*\n.*in_chanels'):
        check_config(cfg)


def test_roi_heads_on_one_map():
    cfg = load_config(TINY_CONFIG)
    for part in ('bbox', 'mask'):
        cfg.model.roi_head[f'{part}_roi_extractor'].featmap_strides = [4]
    check_config(cfg)
    cfg.model.roi_head.bbox_roi_extractor.featmap_strides = [8]
    with pytest.raises(ConfigError, match='one thing .*\n.*bbox_roi_extractor.featmap_strides'):
        check_config(cfg)
