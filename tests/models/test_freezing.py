"""What learns and what counts: frozen_stages and norm_eval, alone and in the pairs that recipes use."""
import copy
from itertools import product

import pytest
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from helpers.models import TINY, build, loss_of, randomise

#: The parts with parameters of a model of each patch size, without its blocks.
PYRAMID = {8: {'fpn1'}, 16: {'fpn1', 'fpn2'}}
BLOCKS = [f'blocks.{i}' for i in range(TINY['depth'])]


def part_of(name):
    """``blocks.2`` of ``blocks.2.attn.qkv.weight``, ``fpn1`` of ``fpn1.0.bias``."""
    return '.'.join(name.split('.')[:2 if name.startswith('blocks.') else 1])


def learning_parts(frozen_stages, pyramid):
    """Written for each value, so that the rule is not tested against itself."""
    blocks = {-1: BLOCKS, 0: BLOCKS, 1: BLOCKS[1:], 2: BLOCKS[2:], 3: BLOCKS[3:], 4: []}[frozen_stages]
    return {*blocks, *pyramid, *(('patch_embed', 'pos_embeder') if frozen_stages < 0 else ())}


@pytest.mark.parametrize('frozen_stages', (-1, 0, 1, 2, 3, 4))
@pytest.mark.parametrize('out_strides', ((4, 8, 16, 32), None), ids=('pyramid', 'tokens'))
@pytest.mark.parametrize('patch_size', (8, 16))
def test_exactly_the_parts_behind_the_frozen_ones_learn(patch_size, out_strides, frozen_stages):
    model = build(patch_size, frozen_stages=frozen_stages, out_strides=out_strides).train()
    pyramid = PYRAMID[patch_size] if out_strides else set()
    learning = learning_parts(frozen_stages, pyramid)
    every = {part_of(name) for name, _ in model.named_parameters()}
    assert every == learning_parts(-1, pyramid)
    wanted = {name for name, _ in model.named_parameters() if part_of(name) in learning}
    assert {name for name, p in model.named_parameters() if p.requires_grad} == wanted
    before = copy.deepcopy(model.state_dict())
    loss = loss_of(model(torch.randn(2, 3, 64, 72)))
    if not wanted:
        assert not loss.requires_grad
        return
    loss.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == wanted
    torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e3).step()
    moved = {part_of(name) for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == learning  # statistics too


@pytest.mark.parametrize('norm_cfg', (dict(type='BN'), dict(type='SyncBN')), ids=lambda cfg: cfg['type'])
@pytest.mark.parametrize('patch_size, with_cp, half', ((8, False, False), (8, True, True), (16, True, False),
                                                       (16, False, True)))
@pytest.mark.parametrize('frozen_stages, norm_eval', list(product((-1, 0, 2), (False, True))))
def test_frozen_stages_and_norm_eval_in_pairs(frozen_stages, norm_eval, patch_size, with_cp, half, norm_cfg):
    """With either batch norm, checkpointing, autocast and stochastic depth: modes, gradients, and each count."""
    model = randomise(build(patch_size, frozen_stages=frozen_stages, norm_eval=norm_eval, with_cp=with_cp,
                            norm_cfg=norm_cfg, drop_path_rate=0.3))
    every, learning = (learning_parts(stages, PYRAMID[patch_size]) for stages in (-1, frozen_stages))

    def trains(name, module):
        return part_of(name) not in every - learning and not (norm_eval and isinstance(module, _BatchNorm))

    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm)}
    for switches in ((True, ), (True, True), (False, True)):  # a loop calls train() at every epoch
        for mode in switches:
            model.train(mode)
        for name, module in model.named_modules():
            assert module.training == trains(name, module), name
    assert len(norms) == {8: 7, 16: 9}[patch_size]
    before = copy.deepcopy(dict(model.named_buffers()))
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=half):
        levels = model(torch.randn(3, 3, 88, 104))
    loss_of([level.float() for level in levels]).backward()
    for name, p in model.named_parameters():
        assert (p.grad is not None) == p.requires_grad == (part_of(name) in learning), name
    for name, module in norms.items():
        is_counted = trains(name, module)
        assert module.num_batches_tracked == before[f'{name}.num_batches_tracked'] + is_counted, name
        for statistic in ('running_mean', 'running_var'):
            same = torch.equal(getattr(module, statistic), before[f'{name}.{statistic}'])
            assert same == (not is_counted), (name, statistic)
    assert not any(module.training for module in model.eval().modules())


def test_frozen_stages_go_no_further_than_the_blocks_that_are_built():
    with pytest.raises(ValueError, match=r'frozen_stages.* 2\b.*\b3\b'):
        build(out_indices=(0, 1), out_strides=None, frozen_stages=3)
    assert not any(p.requires_grad for p in build(out_indices=(0, 1), out_strides=None, frozen_stages=2).parameters())
