"""Views of several sizes: one pass of the backbone a size, with the outputs of separate passes."""
import copy

import pytest
import torch

import xcit_dense
from helpers.models import randomise, relative_error
from xcit_dense.errors import ConfigError
from xcit_dense.selfsup.dino import DINO
from xcit_dense.selfsup.head import DINOHead

ARCH = dict(embed_dims=32, depth=2, num_heads=4, patch_size=8, tokens_norm=False)


def build(**options):
    backbone = dict(type='XCiTClassifier', arch=ARCH, num_classes=0, norm_cfg=dict(type='BN'), norm_eval=True) | options
    model = DINO(backbone, dict(type=DINOHead, num_prototypes=16, hidden_channels=32, bottleneck_channels=8))
    model.teacher_temperature = 0.04
    return randomise(model).train()


def views_of(*sizes):
    return [torch.randn(3, 3, size, size) for size in sizes]


@pytest.mark.parametrize('sizes, passes', (
    ((32, 32, 16, 16, 16), [(6, 32), (9, 16)]), ((32, 32, 24, 24, 16), [(6, 32), (6, 24), (3, 16)]),
    ((32, 32), [(6, 32)]), ((32, 16, 32), [(3, 32), (3, 16), (3, 32)])))
def test_one_pass_a_size(sizes, passes):
    """Views that are no neighbours have passes of their own: the order of the outputs is always that of the views."""
    model, views, seen = build(), views_of(*sizes), []
    model.student.backbone.register_forward_pre_hook(lambda _, args: seen.append((len(args[0]), args[0].shape[-1])))
    got = model.student(views)
    assert seen == passes
    for out, view in zip(got, views, strict=True):
        assert relative_error(out, model.student.head(model.student.backbone(view))) < 1e-5


def gradients(model, views):
    losses = model(views, mode='loss')
    model.zero_grad()
    losses['loss'].backward()
    return losses['loss'].detach(), torch.cat([p.grad.flatten() for p in model.student.parameters() if p.requires_grad])


@pytest.mark.parametrize('norm_eval', (True, False))
def test_the_fast_path_and_checkpointing_change_nothing(norm_eval):
    model, views = build(norm_eval=norm_eval).double(), [view.double() for view in views_of(32, 32, 16, 24)]
    saving, slow = copy.deepcopy(model), copy.deepcopy(model)
    for branch in (saving.student, saving.teacher):
        branch.backbone.with_cp = True
    wanted = gradients(model, views)
    with xcit_dense.set_fast(False):
        others = [gradients(slow, views)]
    others.append(gradients(saving, views))
    for got, other in zip(others, (slow, saving), strict=True):
        assert all(relative_error(*pair) < 1e-10 for pair in zip(got, wanted, strict=True))
        for name, value in model.state_dict().items():  # statistics of batch norms, and the centre
            torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-10, atol=1e-12)


def test_gradients_reach_all_of_the_student_and_nothing_else():
    model = build()
    gradients(model, views_of(32, 32, 16))
    for name, parameter in model.named_parameters():
        learns = name.startswith('student.') and not name.endswith('weight_g')
        assert (parameter.grad is not None and parameter.grad.abs().sum() > 0) == learns, name


def test_both_start_from_the_weights_of_the_config(tmp_path):
    """The teacher has those of the student, and nothing of its own: no stochastic depth either."""
    source = randomise(xcit_dense.XCiTClassifier(ARCH, num_classes=0, norm_cfg=dict(type='BN')))
    torch.save(source.state_dict(), tmp_path / 'start.pth')
    model = build(drop_path_rate=0.3, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'start.pth')))
    model.init_weights()
    for branch in (model.student, model.teacher):
        for name, value in source.state_dict().items():
            assert torch.equal(branch.backbone.state_dict()[name], value), name
    assert all(torch.equal(a, b) for a, b in zip(
        model.student.parameters(), model.teacher.parameters(), strict=True))
    rates = [{block.drop_path.rate for block in branch.backbone.blocks}
             for branch in (model.student, model.teacher)]
    assert rates == [{0.3}, {0.}]


def test_features_are_those_of_the_teacher():
    model, images = build(drop_path_rate=0.1).eval(), torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), model.teacher.backbone.features(images))
    with pytest.raises(ConfigError, match="no outputs for the mode 'predict'.*test --knn"):
        model(images, mode='predict')


@pytest.mark.parametrize('views, got', ((views_of(32), '1 view'), (views_of(32)[0], '3 single images')))
def test_a_loss_needs_two_views_of_each_image(views, got):
    """With one, no pair is left; a pipeline that cuts none gives the images as they are."""
    with pytest.raises(ConfigError, match=f'at least 2 views of each image, got {got}: .*MultiCrop.*PackInputs'):
        build()(list(views), mode='loss')


def test_a_head_for_classes_is_refused():
    with pytest.raises(ConfigError, match='head for 7 classes: set model.backbone.num_classes=0'):
        build(num_classes=7)


def test_the_passes_are_compiled():
    """What `CompileHook` compiles is what runs, for each size."""
    model, views, graphs = build().eval(), views_of(32, 32, 16), []
    wanted = model.student(views)

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    model.student.backbone.compile(backend=backend, dynamic=True)
    with torch.no_grad():
        got = model.student(views)
    assert graphs and relative_error(got, wanted) < 1e-5
