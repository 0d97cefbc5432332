"""Weights of classifiers: every published file, every layout, strictly."""
import pickle
import re

import pytest
import torch

from helpers.models import TINY, official_state, prefixed, save
from helpers.paths import ROOT
from xcit_dense import XCiTClassifier, get_arch
from xcit_dense.archs import SIZES
from xcit_dense.errors import CheckpointError
from xcit_dense.weights import load_classifier, load_model, read_checkpoint
from xcit_dense.weights.convert import convert
from xcit_dense.weights.describe import Contents
from xcit_dense.weights.zoo import WEIGHTS

PUBLISHED = [name for name, weights in WEIGHTS.items() if {'top1', 'knn'} & weights.published.keys()]


def build(num_classes=10, **options):
    arch = dict(embed_dims=TINY['embed_dims'], depth=TINY['depth'], num_heads=TINY['num_heads'])
    return XCiTClassifier(arch, num_classes=num_classes, norm_cfg=dict(type='BN'), **options)


def published_state(arch, has_head):
    """The tensors of an ImageNet file by the authors' names; each takes the memory of one number."""
    C, p, heads = arch.embed_dims, arch.patch_size, arch.num_heads
    shapes, channels = {}, 3
    for i in range(p.bit_length() - 1):
        width = C * 2**(i + 1) // p
        shapes[f'patch_embed.proj.{2 * i}.0.weight'] = (width, channels, 3, 3)
        shapes |= batch_norm(f'patch_embed.proj.{2 * i}.1.', width)
        channels = width
    shapes |= layer('pos_embeder.token_projection', C, 64, 1, 1)
    for i in range(arch.depth):
        block = f'blocks.{i}.'
        shapes |= {f'{block}gamma{n}': (C, ) for n in (1, 2, 3)} | {f'{block}attn.temperature': (heads, 1, 1)}
        for n in (1, 2, 3):
            shapes |= layer(f'{block}norm{n}', C)
        shapes |= layer(f'{block}attn.qkv', 3 * C, C) | layer(f'{block}attn.proj', C, C)
        shapes |= layer(f'{block}mlp.fc1', 4 * C, C) | layer(f'{block}mlp.fc2', C, 4 * C)
        shapes |= layer(f'{block}local_mp.conv1', C, 1, 3, 3) | layer(f'{block}local_mp.conv2', C, 1, 3, 3)
        shapes |= batch_norm(f'{block}local_mp.bn.', C)
    shapes |= {'cls_token': (1, 1, C)} | layer('norm', C)
    for i in range(2):
        block = f'cls_attn_blocks.{i}.'
        shapes |= {f'{block}gamma{n}': (C, ) for n in (1, 2)} | layer(f'{block}norm1', C) | layer(f'{block}norm2', C)
        shapes |= layer(f'{block}attn.qkv', 3 * C, C) | layer(f'{block}attn.proj', C, C)
        shapes |= layer(f'{block}mlp.fc1', 4 * C, C) | layer(f'{block}mlp.fc2', C, 4 * C)
    if has_head:
        shapes |= layer('head', 1000, C)
    counters = {name.removesuffix('running_var') + 'num_batches_tracked': torch.tensor(7)
                for name in shapes if name.endswith('running_var')}
    return {name: torch.tensor(0.5).expand(shape) for name, shape in shapes.items()} | counters


def layer(name, out, *rest):
    return {f'{name}.weight': (out, *rest), f'{name}.bias': (out, )}


def batch_norm(prefix, width):
    return {f'{prefix}{name}': (width, ) for name in ('weight', 'bias', 'running_mean', 'running_var')}


@pytest.fixture(scope='module')
def skeleton():
    """A function that returns a classifier whose parameters were never filled."""
    made = {}

    def make(arch, num_classes):
        if (arch, num_classes) not in made:
            made.clear()  # one at a time
            with torch.device('meta'):
                model = XCiTClassifier(arch, num_classes=num_classes)
            made[arch, num_classes] = model.to_empty(device='cpu')
        return made[arch, num_classes]

    return make


@pytest.mark.parametrize('name', [
    pytest.param(name, marks=pytest.mark.slow if name.startswith(('small_24', 'medium', 'large')) else ())
    for name in sorted(PUBLISHED, key=lambda name: WEIGHTS[name].arch)])
def test_every_published_file_loads_strictly(name, skeleton, tmp_path, monkeypatch):
    """A file of its layout, at the place of the published one; DINO's have no head."""
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path))
    weights = WEIGHTS[name]
    has_head = not name.endswith('dino')
    state = published_state(get_arch(weights.arch), has_head)
    (tmp_path / 'checkpoints').mkdir()
    torch.save({'model': state} if has_head else state, tmp_path / 'checkpoints' / weights.url.rpartition('/')[2])
    model = skeleton(weights.arch, 1000 if has_head else 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    load_classifier(model, f'xcit://{name}')
    assert all((parameter == 0.5).all() for parameter in model.parameters())
    found = Contents.of(state, name)
    assert found.arch == get_arch(weights.arch) and found.num_classes == (1000 if has_head else None)


def test_there_are_46_published_files():
    assert len(PUBLISHED) == 46 and sum(name.endswith('dino') for name in PUBLISHED) == 4


@pytest.mark.parametrize('target', ('official', 'timm', 'mmpretrain'))
def test_every_layout_loads(tmp_path, target):
    state = official_state()
    source = save(tmp_path / 'in1k.pth', {'model': state})
    convert(source, tmp_path / 'other.pth', target)
    model = build()
    load_classifier(model, tmp_path / 'other.pth')
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    # as the whole model of a test
    whole = torch.nn.Module()
    whole.backbone = build()
    load_model(whole, read_checkpoint(tmp_path / 'other.pth'), 'other.pth')
    assert all(torch.equal(value, state[name]) for name, value in whole.backbone.state_dict().items())


def test_passl_files_load(tmp_path):
    from weights.test_layouts import passl_state
    state, path = official_state(), tmp_path / 'xcit.pdparams'
    path.write_bytes(pickle.dumps(passl_state(state)))
    model = build()
    load_classifier(model, path)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items()
               if not name.endswith('num_batches_tracked'))


def test_a_run_gives_a_start(tmp_path):
    """With the same classes, with others, for a model without a head, and from a file without one."""
    state = official_state(num_classes=10)
    run = save(tmp_path / 'epoch_1.pth', {'state_dict': prefixed(state, 'backbone.'), 'meta': {}})
    headless = save(tmp_path / 'dino.pth', {n: v for n, v in state.items() if not n.startswith('head.')})
    for path, classes, takes_head in ((run, 10, True), (run, 3, False), (run, 0, False), (headless, 10, False),
                                      (headless, 0, False)):
        model = build(classes, init_cfg=dict(type='Pretrained', checkpoint=str(path)))
        before = {n: v.clone() for n, v in model.state_dict().items()}
        model.init_weights()
        for name, value in model.state_dict().items():
            taken = takes_head or not name.startswith('head.')
            assert torch.equal(value, state[name] if taken else before[name]), (path, classes, name)
        assert ('start fresh: head' in model.weights_from) == (classes > 0 and not takes_head)


def without(state, name):
    return {n: v for n, v in state.items() if n != name}


@pytest.mark.parametrize('change, words', (
    (lambda s: without(s, 'cls_token'), ('1 missing', 'cls_token')),
    (lambda s: without(s, 'norm.weight'), ('norm.weight', )),
    (lambda s: without(s, 'head.weight'), ('1 missing', 'head.weight')),
    (lambda s: s | {'head.weight': torch.zeros(10, 31)}, ('head.weight (10, 31)', '(10, 32)')),
    (lambda s: s | {'cls_token': torch.zeros(1, 1, 31)}, ('cls_token (1, 1, 31)', )),
    (lambda s: s | {'cls_token': torch.full((1, 1, 32), torch.nan)}, ('cls_token: NaN', )),
    (lambda s: s | {'cls_attn_blocks.2.gamma1': torch.zeros(32)}, ('1 unknown', 'cls_attn_blocks.2.gamma1')),
    (lambda s: {n: v for n, v in s.items() if n.startswith(('blocks', 'patch', 'pos'))}, (
        'the dense layout', 'cls_token', 'with classifier')),
))
def test_what_does_not_fit_is_refused_and_changes_nothing(tmp_path, change, words):
    model = build()
    before = {n: v.clone() for n, v in model.state_dict().items()}
    with pytest.raises(CheckpointError) as caught:
        load_classifier(model, save(tmp_path / 'odd.pth', change(official_state())))
    assert all(word in str(caught.value) for word in (*words, 'odd.pth')), caught.value
    assert all(torch.equal(value, before[n]) for n, value in model.state_dict().items())


@pytest.mark.parametrize('size', SIZES)
def test_parameters_are_passls_in_millions(size):
    """To the two digits that PASSL publishes."""
    published = {
        'nano_12': (3.05, 3.05), 'tiny_12': (6.71, 6.72), 'tiny_24': (12.11, 12.12), 'small_12': (26.21, 26.25),
        'small_24': (47.63, 47.67), 'medium_24': (84.32, 84.40), 'large_24': (188.93, 189.10)}
    for patch, wanted in zip((8, 16), published[size], strict=True):
        with torch.device('meta'):
            model = XCiTClassifier(f'{size}_p{patch}', num_classes=1000)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 2) == wanted


def test_figures_of_passl_are_those_of_the_reference():
    """If the reference is next to the checkout."""
    file = ROOT.parent / 'shared/reference/classifier.md'
    if not file.is_file():
        pytest.skip('there is no reference')
    rows = re.findall(r'^\| (\w+ \d+) \| ([\d./ ]+) \| ([\d./ ]+) \|$', file.read_text(), re.M)
    assert {row[0].replace(' ', '_') for row in rows} == SIZES.keys()
    for size, *columns in rows:
        for patch, column in zip((8, 16), columns, strict=True):
            top1, top5, _ = map(float, column.split('/'))
            published = WEIGHTS[f'{size.replace(" ", "_")}_p{patch}_224'].published
            assert (published['passl_top1'], published['passl_top5']) == (top1, top5)
