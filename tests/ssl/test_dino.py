"""DINO: its views, and all that it computes against a second implementation after the paper, in loops, in float64."""
import copy
import math

import numpy as np
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.optim import OptimWrapper
from mmengine.registry import HOOKS, PARAM_SCHEDULERS

import xcit_dense
from helpers.models import randomise, relative_error
from helpers.paths import ROOT, TINY_DINO_CONFIG
from helpers.runs import make_config, train
from xcit_dense.config.loading import load_config
from xcit_dense.errors import ConfigError
from xcit_dense.ssl.dino import DINO, DINOHead, dino_loss
from xcit_dense.ssl.dino_hooks import DINOHook

ARCH = dict(embed_dims=32, depth=2, num_heads=4, patch_size=8, tokens_norm=False)


def build(num_prototypes=16, **options):
    backbone = dict(type='XCiTClassifier', arch=ARCH, num_classes=0, norm_cfg=dict(type='BN'), norm_eval=True) | options
    model = DINO(backbone, dict(type=DINOHead, num_prototypes=num_prototypes, hidden_channels=32,
                                bottleneck_channels=8))
    model.teacher_temperature = 0.04
    return randomise(model).train()


def views_of(*sizes):
    return [torch.randn(3, 3, size, size) for size in sizes]


@pytest.mark.parametrize('sizes, passes', (
    ((32, 32, 16, 16, 16), [(6, 32), (9, 16)]), ((32, 32, 24, 24, 16), [(6, 32), (6, 24), (3, 16)]),
    ((32, 16, 32), [(3, 32), (3, 16), (3, 32)])))
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
    """Gradients reach all of the student and nothing else."""
    model, views = build(norm_eval=norm_eval).double(), [view.double() for view in views_of(32, 32, 16, 24)]
    saving, slow = copy.deepcopy(model), copy.deepcopy(model)
    for branch in (saving.student, saving.teacher):
        branch.backbone.with_cp = True
    wanted = gradients(model, views)
    for name, parameter in model.named_parameters():
        learns = name.startswith('student.') and not name.endswith('weight_g')
        assert (parameter.grad is not None and parameter.grad.abs().sum() > 0) == learns, name
    with xcit_dense.set_fast(False):
        others = [gradients(slow, views)]
    others.append(gradients(saving, views))
    for got, other in zip(others, (slow, saving), strict=True):
        assert all(relative_error(*pair) < 1e-10 for pair in zip(got, wanted, strict=True))
        for name, value in model.state_dict().items():  # statistics of batch norms, and the centre
            torch.testing.assert_close(other.state_dict()[name], value, rtol=1e-10, atol=1e-12)


def test_both_start_from_the_weights_of_the_config(tmp_path):
    """The teacher has those of the student, and nothing of its own: no stochastic depth either."""
    source = randomise(xcit_dense.XCiTClassifier(ARCH, num_classes=0, norm_cfg=dict(type='BN')))
    torch.save(source.state_dict(), tmp_path / 'start.pth')
    model = build(drop_path_rate=0.3, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'start.pth')))
    model.init_weights()
    for branch, rate in ((model.student, 0.3), (model.teacher, 0.)):
        for name, value in source.state_dict().items():
            assert torch.equal(branch.backbone.state_dict()[name], value), name
        assert {block.drop_path.rate for block in branch.backbone.blocks} == {rate}
    assert all(torch.equal(a, b) for a, b in zip(model.student.parameters(), model.teacher.parameters(), strict=True))


def test_features_are_those_of_the_teacher():
    model, images = build(drop_path_rate=0.1).eval(), torch.randn(2, 3, 32, 32)
    assert torch.equal(model(images), model.teacher.backbone.features(images))
    with pytest.raises(ConfigError, match="no outputs for the mode 'predict'.*test --knn"):
        model(images, mode='predict')


@pytest.mark.parametrize('views', (views_of(32), views_of(32)[0]))
def test_a_loss_needs_two_views_of_each_image(views):
    """With one, no pair is left; a pipeline that cuts none gives the images as they are."""
    with pytest.raises(ConfigError, match='at least 2 views of each image: .*MultiCrop.*PackInputs'):
        build()(list(views), mode='loss')
    with pytest.raises(ConfigError, match='head for 7 classes: set model.backbone.num_classes=0'):
        build(num_classes=7)


def softmax(values):
    powers = np.exp(values)
    return powers / powers.sum()


def expected_loss(student, teacher, centre, student_temperature, teacher_temperature):
    """Return the loss and both entropies, from outputs as nested lists [view][image][prototype]."""
    centre = np.array(centre)
    targets = [[softmax((np.array(image) - centre) / teacher_temperature) for image in view] for view in teacher]
    predictions = [[softmax(np.array(image) / student_temperature) for image in view] for view in student]
    terms = []
    for i, of_teacher in enumerate(targets):
        for j, of_student in enumerate(predictions):
            if i != j:
                terms += [-sum(p * math.log(q) for p, q in zip(a, b, strict=True))
                          for a, b in zip(of_teacher, of_student, strict=True)]
    entropies = [np.mean([-sum(p * math.log(p) for p in image if p) for view in views for image in view])
                 for views in (targets, predictions)]
    return np.mean(terms), *entropies


def expected_cosine(start, end, steps, warmup=0, from_=0.):
    """Return a value for each step: a line from ``from_`` to the start, then half a cosine to the end."""
    rest = steps - warmup
    return [*np.linspace(from_, start, warmup)] + [
        end + 0.5 * (start - end) * (1 + math.cos(math.pi * i / rest)) for i in range(rest)]


@pytest.mark.parametrize('views, of_teacher', ((2, 2), (5, 2), (4, 1)))
def test_the_loss_is_that_of_the_pairs_of_different_views(views, of_teacher):
    student = torch.randn(views, 3, 7, dtype=torch.float64)
    teacher, centre = torch.randn(of_teacher, 3, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    got = dino_loss(student, teacher, centre, 0.1, 0.04)
    wanted = expected_loss(student.tolist(), teacher.tolist(), centre.tolist(), 0.1, 0.04)
    assert [value.item() for value in got] == pytest.approx(wanted, rel=1e-13)


def test_the_schedules_of_the_recipe():
    """Of learning rate and weight decay, at each iteration; what has no decay gets none."""
    cfg, schedulers, got = load_config(ROOT / 'configs/xcit_s12_p16_dino.py'), [], []
    optimizer = torch.optim.AdamW([
        dict(params=[torch.zeros(1, requires_grad=True)], weight_decay=decay) for decay in (0.04, 0.)], lr=2e-3)
    wrapper = OptimWrapper(optimizer)
    hook = next(hook for hook in cfg.custom_hooks if hook.type == 'DINOHook')
    assert vars(HOOKS.build(hook)) == vars(DINOHook())
    for scheduler in cfg.param_scheduler:
        kind = PARAM_SCHEDULERS.get(scheduler.pop('type'))
        assert scheduler.pop('convert_to_iter_based')
        schedulers.append(kind.build_iter_from_epoch(wrapper, epoch_length=1, **scheduler))
    for _ in range(300):
        got.append([(group['lr'], group['weight_decay']) for group in optimizer.param_groups])
        optimizer.step()
        for scheduler in schedulers:
            scheduler.step()
    rates, decays = expected_cosine(2e-3, 1e-6, 300, 10, from_=2e-9), expected_cosine(0.04, 0.4, 300)
    np.testing.assert_allclose(np.array(got)[:, 0], np.stack((rates, decays), 1), rtol=1e-7)
    np.testing.assert_allclose(np.array(got)[:, 1], np.stack((rates, np.zeros(300)), 1), rtol=1e-7)


@pytest.mark.parametrize('batch_norm', (False, True))
def test_prototypes_have_a_direction_and_a_length(batch_norm):
    """A batch norm on each hidden layer is over the features of all views together."""
    head = randomise(DINOHead(4, num_prototypes=5, hidden_channels=6, bottleneck_channels=3, batch_norm=batch_norm))
    norms = ['BatchNorm1d'] * batch_norm
    assert [type(layer).__name__ for layer in head.mlp] == ['Linear', *norms, 'GELU', 'Linear', *norms, 'GELU',
                                                            'Linear']
    x = torch.randn(8, 4, dtype=torch.float64)
    y = x.numpy()
    for layer in head.double().mlp:
        if isinstance(layer, torch.nn.GELU):
            y = np.vectorize(lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2))))(y)
            continue
        weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        if isinstance(layer, torch.nn.Linear):
            y = y @ weight.T + bias
        else:
            y = (y - y.mean(0)) / np.sqrt(y.var(0) + layer.eps) * weight + bias
    y = y / np.sqrt((y**2).sum(1, keepdims=True))
    g, v = (getattr(head.last_layer, name).detach().numpy() for name in ('weight_g', 'weight_v'))
    wanted = [[sum(a * b for a, b in zip(row, v[k], strict=True)) * g[k, 0] / math.sqrt((v[k]**2).sum())
               for k in range(5)] for row in y]
    np.testing.assert_allclose(head(x).detach().numpy(), wanted, rtol=1e-11, atol=1e-13)


class SecondImplementation(Hook):
    """Trains copies of student and teacher besides the run, on the same batches; only the networks are the same. The
    run itself is set to float64, with other parameters than at its start."""
    priority = 'HIGHEST'

    def __init__(self, cfg, per_epoch=4, epochs=3):
        steps, optimizer = per_epoch * epochs, cfg.optim_wrapper.optimizer
        self.per_epoch = per_epoch
        self.rates = expected_cosine(optimizer.lr, 1e-6, steps, per_epoch, from_=0.01 * optimizer.lr)
        self.decays = expected_cosine(0.04, 0.4, steps)
        self.momenta = expected_cosine(0.9, 1., steps)
        self.temperatures = [0.04, 0.07] + [0.07] * (epochs - 2)
        self.got, self.wanted = [], []

    def before_train(self, runner):
        model = self.model = runner.model.double()
        with torch.no_grad():
            randomise(model.student), randomise(model.teacher)
        self.student, self.teacher = copy.deepcopy(model.student).train(), copy.deepcopy(model.teacher).train()
        self.centre = self.teacher.centre.tolist()
        self.moments = {name: [torch.zeros_like(p)] * 2 for name, p in self.student.named_parameters()}

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        mean, std = (torch.tensor(each).double().view(3, 1, 1)  # rounded, as the run has them
                     for each in ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)))
        views = [(view.flip(1) - mean) / std for view in data_batch['inputs']]
        assert [view.shape[-1] for view in views] == [32, 32, 16, 16]
        step, epoch = runner.iter, runner.iter // self.per_epoch
        sizes = [torch.cat(views[:2]), torch.cat(views[2:])]
        student = torch.cat([self.student.head(self.student.backbone(size)).unflatten(0, (2, -1)) for size in sizes])
        with torch.no_grad():
            teacher = torch.stack(self.teacher.head(self.teacher.backbone(sizes[0])).chunk(2))
        values = expected_loss(student.tolist(), teacher.tolist(), self.centre, 0.1, self.temperatures[epoch])
        self.wanted.append([*values, self.momenta[step], self.temperatures[epoch], self.decays[step]])
        centre = torch.tensor(self.centre, dtype=torch.float64)
        targets = torch.softmax((teacher - centre) / self.temperatures[epoch], -1)
        loss = -sum((targets[i] * torch.log_softmax(student[j] / 0.1, 1)).sum(1).mean() / 6
                    for i in range(2) for j in range(4) if i != j)
        assert loss.item() == pytest.approx(values[0], rel=1e-12)
        named = {name: p for name, p in self.student.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(loss, named.values())
        self.wanted[-1].append(math.sqrt(sum(gradient.square().sum().item() for gradient in gradients)))
        for (name, parameter), gradient in zip(named.items(), gradients, strict=True):
            if name.startswith('head.last_layer') and epoch < 1:
                continue
            self._adamw(name, parameter, gradient * min(1., 3. / (gradient.norm().item() + 1e-6)), step)
        with torch.no_grad():
            for own, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                own.copy_(self.momenta[step] * own + (1 - self.momenta[step]) * theirs)
        self.centre = [0.9 * c + 0.1 * mean for c, mean in zip(self.centre, teacher.mean((0, 1)).tolist(), strict=True)]

    @torch.no_grad()
    def _adamw(self, name, parameter, gradient, step):
        decay, rate = self.decays[step] if parameter.dim() > 1 else 0., self.rates[step]
        first, second = self.moments[name]
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        self.moments[name] = [first, second]
        if name.startswith('head.last_layer'):
            step -= self.per_epoch  # its first step was an epoch later
        parameter.mul_(1 - rate * decay)
        parameter.sub_(rate * first / (1 - 0.9**(step + 1)) / ((second / (1 - 0.999**(step + 1))).sqrt() + 1e-8))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        scalars = runner.message_hub.log_scalars
        self.got.append((*(outputs[name].item() for name in ('loss', 'teacher_entropy', 'student_entropy')),
                         *(scalars[f'train/{name}'].current() for name in (
                             'teacher_momentum', 'teacher_temperature', 'weight_decay', 'grad_norm'))))


@pytest.mark.parametrize('norm_last_layer', (True, False))
def test_a_training_is_that_of_the_paper(norm_last_layer, class_folders, tmp_path):
    """Losses, entropies, schedules, every parameter, statistic and the centre, after 12 steps in 3 epochs."""
    cfg = make_config(TINY_DINO_CONFIG, class_folders / 'train', tmp_path, **{
        'model.backbone.drop_path_rate': 0., 'model.head.norm_last_layer': norm_last_layer,
        'model.head.batch_norm': False})  # behind one, biases have no gradient but rounding, which AdamW enlarges
    second = SecondImplementation(cfg)
    train(cfg, second)
    assert len(second.got) == 12
    np.testing.assert_allclose(second.got, second.wanted, rtol=1e-12)
    wanted = dict(student=second.student.state_dict(), teacher={
        **second.teacher.state_dict(), 'centre': torch.tensor(second.centre, dtype=torch.float64)})
    for branch, state in wanted.items():
        got = getattr(second.model, branch).state_dict()
        assert got.keys() == state.keys()
        for name, value in state.items():
            if 'cls_attn' in name and name.endswith('qkv.bias'):  # that of keys has no gradient but rounding either
                got[name], value = (each.unflatten(0, (3, -1))[::2] for each in (got[name], value))
            torch.testing.assert_close(got[name], value, rtol=1e-11, atol=1e-13, msg=f'{branch} {name}')
            # statistics of the teacher are its own
            assert 'running_' not in name or not torch.equal(wanted['teacher'][name], wanted['student'][name])


def test_loss_and_centre_have_float32_in_mixed_precision():
    """The rest has not: one step in bfloat16 works and is a little different."""
    model, seen = build(300, norm_eval=False), {}
    model.teacher.centre.zero_()
    for name in ('student', 'teacher'):
        getattr(model, name).register_forward_hook(lambda _, __, out, name=name: seen.update({name: out}))
    with torch.autocast('cpu', torch.bfloat16):
        losses = model(views_of(32, 32, 16), mode='loss')
    losses['loss'].backward()
    assert seen['student'].dtype == seen['teacher'].dtype == torch.bfloat16
    wanted = dino_loss(seen['student'].double(), seen['teacher'].double(), torch.zeros(300).double(), 0.1, 0.04)
    for got, value in zip(losses.values(), wanted, strict=True):
        assert got.dtype == torch.float32 and got.item() == pytest.approx(value.item(), rel=2e-6)
    assert model.teacher.centre.dtype == torch.float32
    torch.testing.assert_close(model.teacher.centre, 0.1 * seen['teacher'].double().mean((0, 1)).float(), rtol=1e-5,
                               atol=1e-9)
    assert all(p.grad.isfinite().all() for p in model.student.parameters() if p.requires_grad)
