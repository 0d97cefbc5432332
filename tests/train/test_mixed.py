"""Mixed precision on a CPU: what runs in bfloat16, how near it stays to float32, and that it resumes exactly."""
from functools import partial

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim.optimizer import amp_optimizer_wrapper

from helpers.paths import TINY_CLS_CONFIG, TINY_CONFIG, TINY_SEG_CONFIG
from helpers.runs import assert_same_run, make_config, stop_after, train
from helpers.tools import run_tool
from xcit_dense._utils import machine
from xcit_dense.config.options import set_amp
from xcit_dense.models.block import XCABlock
from xcit_dense.train.hooks import Bfloat16OptimWrapper
from xcit_dense.train.resuming import changed_settings

pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture(autouse=True)
def _bfloat16(monkeypatch):
    """Every processor has it; emulated, it gives the same."""
    monkeypatch.setattr(machine, 'has_bfloat16', lambda device: True)


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
