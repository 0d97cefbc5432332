"""The hooks that fuse, compile and average; one optimizer, whose parameters step together; mixed precision on a CPU."""
import copy
import re
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from mmengine.config import Config
from mmengine.hooks import EMAHook, Hook
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from mmengine.optim.optimizer import amp_optimizer_wrapper
from mmengine.runner import BaseLoop
from torch import nn

from helpers.models import assert_equal
from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import assert_same_run, make_config, stop_after, train, whole_run
from helpers.tools import run_tool
from xcit_dense._utils import machine
from xcit_dense.config.loading import load_config
from xcit_dense.config.options import add_hook, check_compiler, set_amp
from xcit_dense.errors import ConfigError
from xcit_dense.models.block import XCABlock
from xcit_dense.predict.predictor import build_predictor
from xcit_dense.train import CompileHook, build_runner, hooks
from xcit_dense.train.hooks import Bfloat16OptimWrapper, step_together
from xcit_dense.train.resuming import changed_settings

pytestmark = [pytest.mark.filterwarnings('ignore'), pytest.mark.usefixtures('bfloat16')]


@pytest.mark.parametrize('config, average', (
    (TINY_SEG_CONFIG, 'EMAHook'), (TINY_SEG_CONFIG, 'AverageHook'), (TINY_CLS_CONFIG, None)))
def test_a_test_fuses(config, average, demo_data, class_folders, tmp_path):
    """With an average of parameters to swap it must not; one beside the model may be missing in the weights."""
    if average is None:
        pytest.importorskip('mmpretrain')
    runner = build_runner(make_config(config, demo_data if average else class_folders, tmp_path, custom_hooks=[
        dict(type='FuseHook'), *([dict(type=average)] if average else [])]))
    assert any(isinstance(hook, EMAHook) for hook in runner.hooks) == bool(average)
    torch.save(dict(model=runner.model.state_dict()), tmp_path / 'weights.pth')
    runner.call_hook('before_run')
    if average != 'EMAHook':
        runner.load_checkpoint(str(tmp_path / 'weights.pth'))
    runner.call_hook('before_test')
    runner.call_hook('before_test_epoch')
    assert runner.model.backbone.is_fused == (average != 'EMAHook')


@pytest.mark.parametrize('kind', ('DenseRunner', 'Runner'))
def test_validations_are_faster_where_the_config_asks(kind, demo_data, tmp_path):
    """Metrics of mmdet's own way are the same; without our runner or the hook nothing is replaced."""
    found = []
    for own in ([], [dict(type='FastValidationHook')]):
        torch.manual_seed(0)
        cfg = make_config(TINY_CONFIG, demo_data, tmp_path / str(len(own)), custom_hooks=own, runner_type=kind)
        cfg.model.test_cfg.rcnn.score_thr, cfg.load_from = 0, None
        runner = build_runner(cfg)
        torch.save(runner.model.state_dict(), tmp_path / 'weights.pth') if not found else None
        runner.load_checkpoint(str(tmp_path / 'weights.pth'))
        metrics = runner.val()
        metric, = runner.val_evaluator.metrics
        is_fast = kind == 'DenseRunner' or bool(own)
        assert ('compute_metrics' in vars(metric)) == ('predict' in vars(runner.model)) == is_fast
        found.append(metrics)
    assert found[0] == found[1] and 'coco/segm_mAP' in found[0]


class Own(BaseLoop):
    """A validation without an evaluator."""
    def __init__(self, runner, dataloader, evaluator):
        super().__init__(runner, dataloader)

    def run(self):
        self.runner.call_hook('before_val')
        return 'validated'


def test_another_loop_needs_no_evaluator(demo_data, tmp_path):
    cfg = make_config(TINY_CONFIG, demo_data, tmp_path, val_cfg=dict(type=Own), custom_hooks=[
        dict(type='FastValidationHook')])
    assert build_runner(cfg).val() == 'validated'


def test_what_a_validation_waited_for(demo_data, tmp_path, monkeypatch):
    """Three images, each read in 1 second and predicted in 2, with masks of half a second; evaluated in 3."""
    now, said = [0.], []
    monkeypatch.setattr(hooks, 'time', SimpleNamespace(monotonic=lambda: now[0]))
    runner = SimpleNamespace(logger=SimpleNamespace(info=said.append))
    hook, masks = hooks.TimesHook(), SimpleNamespace(seconds=0.5)
    for where in ('val', 'test'):
        getattr(hook, f'before_{where}_epoch')(runner)
        for number in range(3):
            now[0] += 1
            getattr(hook, f'before_{where}_iter')(runner, number)
            now[0] += 2
            getattr(hook, f'after_{where}_iter')(runner, number, None, [dict(pred_instances=SimpleNamespace(
                masks=masks)), dict(), SimpleNamespace()])
        now[0] += 3
        getattr(hook, f'after_{where}_epoch')(runner)
    assert said == [f'{what} in 12 s: model 38%, masks 12%, evaluation 25%, waiting for images 25%' for what in (
        'validated', 'tested')]


def test_the_average_changes_nothing_but_itself(demo_data, tmp_path, tmp_path_factory):
    """Decay 0.9; validation and checkpoints use the weights without the average."""
    seen, validated = [], []

    class Look(Hook):
        def after_train_iter(self, runner, *_, **__):
            seen.append(copy.deepcopy(runner.model.state_dict()))

        def before_val_iter(self, runner, *_, **__):
            validated.append(copy.deepcopy(runner.model.state_dict()))

    end = train(make_config(TINY_SEG_CONFIG, demo_data, tmp_path, custom_hooks=[
        dict(type='AverageHook', momentum=0.1, update_buffers=True)]), Look())
    assert_equal(end['state_dict'], whole_run('iterations', demo_data, tmp_path_factory)['state_dict'])
    assert_equal(validated[0], seen[1])
    average = seen[0]
    for state in seen[1:]:
        average = {key: value.lerp(state[key], 0.1) if value.is_floating_point() else value
                   for key, value in average.items()}
    found = {key.removeprefix('module.'): value for key, value in end['ema_state_dict'].items() if key != 'steps'}
    assert_equal(found, average)


def test_an_average_may_begin_at_a_resume(demo_data, tmp_path, capfd):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    stop_after(2, cfg)
    cfg.custom_hooks = [dict(type='AverageHook')]
    assert train(cfg, resume=True)['ema_state_dict']['steps'] == 2
    assert re.search("differ from before.*\n.*custom_hooks.*AverageHook", ''.join(capfd.readouterr()))
    cfg.load_from, cfg.work_dir = str(tmp_path / 'iter_4.pth'), str(tmp_path / 'next')
    assert train(cfg)['ema_state_dict']['steps'] == 4  # a new run has an average of its own


def test_compile_hook(tmp_path, demo_data):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    add_hook(cfg, 'CompileHook')
    runner = build_runner(cfg)
    blocks, names = runner.model.backbone.blocks, list(runner.model.state_dict())
    assert not any(block._compiled_call_impl for block in blocks)
    next(hook for hook in runner.hooks if isinstance(hook, CompileHook)).before_train(runner)
    assert all(block._compiled_call_impl for block in blocks) and list(runner.model.state_dict()) == names


def test_compiling_without_a_compiler_names_it(call_tool, monkeypatch, demo_data):
    monkeypatch.setenv('CXX', 'no-such-compiler')
    code, message = call_tool('train.py', TINY_CONFIG, '--data-root', demo_data, '--compile')
    assert code == 1 and 'no-such-compiler' in message and '--compile' in message
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)  # it needs none
    check_compiler()
    monkeypatch.undo()
    monkeypatch.setenv('CXX', sys.executable)
    check_compiler()


def test_prediction_fuses(trained):
    cfg = load_config(TINY_CONFIG, pretrained=False)
    assert build_predictor(cfg, trained[0]).model.backbone.is_fused


def test_several_optimizers_and_a_rule_that_matches_nothing_are_refused(demo_data, tmp_path):
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path)
    runner = build_runner(cfg)
    several = OptimWrapperDict(one=OptimWrapper(torch.optim.SGD(runner.model.parameters(), lr=1.)))
    with pytest.raises(ConfigError, match='several optimizers'):
        runner.build_optim_wrapper(several)
    cfg.optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=1.),
                             paramwise_cfg=dict(custom_keys={'gama1': dict(lr_mult=2)}))
    with pytest.raises(ConfigError, match='custom_keys.gama1'):
        build_runner(cfg).train()


@pytest.mark.parametrize('backbone', (0., 0.5, 1.))
def test_rates_of_one_are_scaled_where_parts_have_the_rate_0(backbone, demo_data, tmp_path):
    """The one in the log too, which is that of the config."""
    cfg = make_config(TINY_SEG_CONFIG, demo_data, tmp_path, **{
        'optim_wrapper.paramwise_cfg': dict(custom_keys=dict(backbone=dict(lr_mult=backbone)))})
    runner = build_runner(cfg)
    wrapper = runner.build_optim_wrapper(cfg.optim_wrapper)
    rate = cfg.optim_wrapper.optimizer.lr
    for enabled, scale, steps in ((False, 1, 4), (True, 1 / 4, 1), (True, 1 / 4, 4)):  # each in addition
        wrapper._accumulative_counts = steps
        runner.scale_lr(wrapper, dict(enable=enabled, base_batch_size=8))
        rates = sorted({group['lr'] for group in wrapper.optimizer.param_groups})
        assert rates == pytest.approx(sorted({rate * scale * backbone, rate * scale}))
        assert wrapper.get_lr()['base_lr'] == pytest.approx([rate * scale])


@pytest.mark.parametrize(('optimizer', 'groups'), [
    (dict(type='AdamW', foreach=True), 3), (dict(type='Adam', betas=[0.8, 0.9]), 3),
    (dict(type='SGD', momentum=0.9, foreach=True), 3), (dict(type=type('Own', (torch.optim.Adam, ), {})), None)])
def test_equal_parameters_step_together_to_the_same_bits(optimizer, groups):
    """Within a step there are three groups (a higher rate, no decay, the rest). Else there are those of mmengine, as
    for an optimizer that may write anything into its groups."""
    rules = dict(norm_decay_mult=0., custom_keys={'head.0': dict(lr_mult=10.)})
    models, counts = [], []
    for together in (False, True):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)))
        models[-1].head = nn.Sequential(nn.Linear(4, 2), nn.LayerNorm(2))
        cfg = Config(dict(type='OptimWrapper', optimizer=dict(optimizer, lr=0.01, weight_decay=0.1),
                          paramwise_cfg=rules))._cfg_dict
        wrapper = build_optim_wrapper(models[-1], cfg)
        own = wrapper.optimizer.param_groups
        if together:
            step_together(wrapper)
            step_together(wrapper)  # as in a resumed run, which builds its optimizer twice
            wrapper.optimizer.register_step_pre_hook(lambda each, *_: counts.append(len(each.param_groups)))
        for step in range(3):
            own[0]['lr'] = 0.01 * (step + 1)  # a schedule changes one of them: from then on it is a group by itself
            for parameter in models[-1].parameters():
                parameter.grad = torch.randn_like(parameter)
            wrapper.step()
        assert wrapper.optimizer.param_groups is own and len(own) == len(list(models[-1].parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert counts == ([groups, groups + 1, groups + 1] if groups else [len(own)] * 3)


@pytest.fixture
def config(demo_data, class_folders, tmp_path):
    """A function that returns a tiny config with mixed precision or without."""
    def make(path, amp, **changes):
        data = class_folders if path == TINY_CLS_CONFIG else demo_data
        cfg = make_config(path, data, tmp_path / f'amp {amp}', **changes)
        if amp:
            set_amp(cfg)
        return cfg
    return make


class Watch(Hook):
    """Collects the losses, the types that FFNs trained in, and those of gradients; validations are in float32."""
    def __init__(self):
        self.losses, self.kinds, self.tested, self.gradients = [], set(), set(), set()

    def before_train(self, runner):
        for module in runner.model.modules():
            if isinstance(module, XCABlock):
                module.mlp.fc1.register_forward_hook(
                    lambda layer, args, out: (self.kinds if layer.training else self.tested).add(out.dtype))
        runner.optim_wrapper.optimizer.register_step_pre_hook(lambda *_: self.gradients.update(
            p.grad.dtype for p in runner.model.parameters() if p.grad is not None))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        # proposals, of which the second stage draws, are others in bfloat16
        of_rpn = [value for name, value in outputs.items() if name.startswith('loss_rpn')]
        self.losses.append(float(sum(of_rpn) if of_rpn else outputs['loss']))
        assert outputs['loss'].dtype == torch.float32


@pytest.mark.parametrize('path', (
    TINY_SEG_CONFIG, TINY_CLS_CONFIG, pytest.param(TINY_CONFIG, marks=pytest.mark.slow)), ids=lambda path: path.stem)
def test_a_training_in_bfloat16_is_near_that_in_float32(path, config):
    """The blocks compute in bfloat16; losses, gradients, what is learned and saved are float32."""
    if path == TINY_CLS_CONFIG:
        pytest.importorskip('mmpretrain')
    seen = {}
    for amp in (False, True):
        seen[amp] = Watch()
        state = train(config(path, amp), seen[amp])['state_dict']
        assert all(value.dtype == torch.float32 for value in state.values() if value.is_floating_point())
    assert seen[False].kinds == seen[False].gradients == seen[True].gradients == {torch.float32}
    assert seen[True].kinds == {torch.bfloat16} and seen[True].tested == {torch.float32}
    losses, wanted = (torch.tensor(seen[amp].losses) for amp in (True, False))
    assert losses[0] != wanted[0] and losses[0] == pytest.approx(wanted[0].item(), rel=0.02)
    assert torch.isfinite(losses).all() and losses[-1] == pytest.approx(wanted[-1].item(), rel=0.1)


def test_stopped_and_resumed_is_the_same_to_the_last_bit(config, tmp_path, monkeypatch):
    """With mmengine's wrapper for GPUs, which scales the loss; a scale grows with each step of the optimizer."""
    monkeypatch.setattr(amp_optimizer_wrapper, 'is_cuda_available', lambda: True)
    monkeypatch.setattr(amp_optimizer_wrapper, 'GradScaler', partial(torch.amp.GradScaler, 'cpu'))
    cfg = config(TINY_SEG_CONFIG, True, **{'optim_wrapper.accumulative_counts': 2})
    cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale=dict(init_scale=1024., growth_interval=1),
                             clip_grad=dict(max_norm=1.))
    wanted = train(cfg)
    assert wanted['optimizer']['loss_scaler']['scale'] == 4096
    cfg.work_dir = str(tmp_path / 'stopped')
    stop_after(3, cfg)  # between two iterations whose gradients are summed
    assert_same_run(train(cfg, resume=True), wanted)


def test_the_tool_offers_it(demo_data, tmp_path):
    done = run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--amp',
                    '--no-pretrained')
    assert 'precision        mixed: bfloat16 and float32' in done.stdout


def test_a_processor_without_it_trains_in_float32_and_says_so(config, monkeypatch, capsys):
    monkeypatch.setattr(machine, 'has_bfloat16', lambda device: False)
    cfg = config(TINY_SEG_CONFIG, True)
    said = [line for line in ''.join(capsys.readouterr()).splitlines() if 'bfloat16' in line]
    assert cfg.optim_wrapper.type == 'OptimWrapper' and len(said) == 1 and 'runs in float32' in said[0]
    # a resumed run names the option
    monkeypatch.setattr(machine, 'has_bfloat16', lambda device: True)
    plain, mixed = (config(TINY_SEG_CONFIG, amp) for amp in (False, True))
    told = changed_settings(plain, mixed.pretty_text, None)
    assert "optim_wrapper.type: 'Bfloat16OptimWrapper' -> 'OptimWrapper'" in told
    assert told.endswith('if the previous run had --amp, give it again')
    assert 'again' not in changed_settings(mixed, plain.pretty_text, None)


def test_bfloat16_is_computed_in_where_another_type_is_the_default():
    """As on a GPU, where that of autocast is float16."""
    before = torch.get_autocast_dtype('cpu')
    model, wrapper = torch.nn.Linear(2, 2), Bfloat16OptimWrapper(torch.optim.SGD([torch.zeros(1)], 1.))
    try:
        torch.set_autocast_dtype('cpu', torch.float16)
        with wrapper.optim_context(model):
            assert model(torch.ones(1, 2)).dtype == torch.bfloat16
    finally:
        torch.set_autocast_dtype('cpu', before)
