"""The configs for fine-tuning: start, schedule and rates, each against the recipe of the same size."""
import pytest
from mmengine.optim import build_optim_wrapper

from helpers.recipes import DENSE, build
from xcit_dense.config.loading import load_config
from xcit_dense.weights import zoo

NAMES = [name for name in DENSE if name.endswith('_finetune')]


def test_one_for_each_task_and_size_class():
    wanted = [f'{family}_xcit_{size}_p16_finetune' for family in ('maskrcnn', 'semfpn')
              for size in ('m24', 's12', 't12')]
    assert wanted == NAMES


@pytest.mark.parametrize('name', NAMES)
def test_it_starts_from_the_whole_published_model(name):
    """And differs from the recipe that trained these weights only in length, rates and data."""
    cfg = load_config(name, check=True)
    recipe = load_config(name.replace('finetune', 'coco' if 'maskrcnn' in name else 'ade20k'), pretrained=False)
    weights = zoo.get_weights(cfg.init_from)
    assert cfg.init_from.startswith(f'xcit://{name.partition("_")[0]}_') and weights.arch == cfg.model.backbone.arch
    del recipe.model.backbone['init_cfg']
    assert cfg.model == recipe.model and cfg.load_from is None
    assert cfg.classes_from_data and not recipe.get('classes_from_data')
    assert cfg.auto_scale_lr == recipe.auto_scale_lr and cfg.train_dataloader.batch_size == 2
    assert cfg.optim_wrapper.optimizer == {**recipe.optim_wrapper.optimizer,
                                           'lr': recipe.optim_wrapper.optimizer.lr / 2}
    length = 'max_epochs' if 'maskrcnn' in name else 'max_iters'
    assert cfg.train_cfg[length] <= recipe.train_cfg[length] / 3
    assert cfg.param_scheduler[1].end == cfg.train_cfg[length] and cfg.param_scheduler[0].end <= 200
    assert load_config(name, pretrained=False).init_from is None
    assert load_config(name, pretrained=False, init_from='mine.pth').init_from == 'mine.pth'


@pytest.mark.parametrize('name, rate', (
    ('maskrcnn_xcit_t12_p16_finetune', 5e-5), ('semfpn_xcit_t12_p16_finetune', 3e-5)))
def test_rates_shrink_with_the_depth_where_that_is_asked_for(name, rate):
    assert 'constructor' not in load_config(name).optim_wrapper
    cfg = load_config(name, check=True, cfg_options={
        'optim_wrapper.constructor': 'LayerDecayConstructor', 'optim_wrapper.paramwise_cfg.layer_decay_rate': 0.9})
    model = build(cfg)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = {names[id(group['params'][0])]: group
              for group in build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups}
    assert groups['neck.lateral_convs.0.conv.weight']['lr'] == groups['backbone.fpn1.0.weight']['lr'] == rate
    assert groups['backbone.blocks.11.gamma1']['lr'] == pytest.approx(rate * 0.9)
    assert groups['backbone.patch_embed.proj.0.0.weight']['lr'] == pytest.approx(rate * 0.9**13)
    assert groups['backbone.blocks.0.norm1.weight']['weight_decay'] == 0
    assert groups['backbone.blocks.0.gamma1']['weight_decay'] == cfg.optim_wrapper.optimizer.weight_decay
