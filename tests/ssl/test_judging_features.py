"""test --knn and --linear: the features of a backbone, judged on labelled images."""
import re
import shutil
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from mmengine.registry import MODELS, init_default_scope

from helpers.models import prefixed
from helpers.paths import ROOT, TINY_CLS_CONFIG, TINY_CONFIG
from helpers.tools import run_tool
from xcit_dense import XCiT, XCiTClassifier
from xcit_dense.config.loading import load_config
from xcit_dense.config.testing import set_knn, set_linear, set_test_size
from xcit_dense.data.datasets import LOADERS
from xcit_dense.data.demo import make_demo_data
from xcit_dense.report.curves import read_curves
from xcit_dense.ssl.dino import DINO, DINOHead
from xcit_dense.ssl.linear import RATES, LinearLayers
from xcit_dense.ssl.probes import Features
from xcit_dense.train.runner import DenseRunner

pytestmark = pytest.mark.filterwarnings('ignore')
ARCH = dict(embed_dims=32, depth=2, num_heads=4, patch_size=8, tokens_norm=False)
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of red, green, blue
#: The small configs with a smaller model, which needs fewer minutes.
CONFIG = '''_base_ = '{}/configs/{}.py'
model = dict(backbone=dict(arch=dict(
    _delete_=True, embed_dims=64, depth=4, num_heads=4, patch_size=8, out_indices=(0, 1, 2, 3))))
'''
PREPARE = dict(dense=lambda folder, data: torch.save(dict(
                   state_dict=prefixed(XCiT(dict(ARCH, depth=4)).state_dict(), 'backbone.')), folder / 'dino.pth'),
               broken=lambda folder, data: (data / 'train/green/03.png').write_bytes(b''),
               renamed=lambda folder, data: (data / 'train/red').rename(data / 'train/crimson'),
               empty=lambda folder, data: shutil.rmtree(data / 'train'),
               listed=lambda folder, data: (folder / 'list.txt').write_text('blue/00.png 0\ngreen/00.png 7\n'))


def write_images(folder, count, seed):
    """Noise with a weak tint of the class, of the size that the tiny config crops to."""
    noise = np.random.default_rng(seed)
    for channel, name in enumerate(('blue', 'green', 'red')):
        (folder / name).mkdir(parents=True)
        for number in range(count + channel):
            picture = noise.integers(0, 120, (32, 32, 3)) + noise.integers(0, 60, 3)
            picture[..., channel] += 25
            cv2.imwrite(str(folder / name / f'{number:02}.png'), picture.astype(np.uint8))


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    """21 training and 15 test images: not a multiple of two."""
    root = tmp_path_factory.mktemp('tinted')
    write_images(root / 'train', 6, 0)
    write_images(root / 'val', 4, 1)
    return root


@pytest.fixture(scope='module')
def backbone():
    torch.manual_seed(0)
    return XCiTClassifier(ARCH, num_classes=0).eval()


@pytest.fixture(scope='module')
def weights(backbone, tmp_path_factory):
    """A file of the backbone alone, as DINO's authors publish theirs."""
    path = tmp_path_factory.mktemp('weights') / 'dino.pth'
    torch.save(backbone.state_dict(), path)
    return path


def judge(weights, data, work_dir, *options, **kwargs):
    return run_tool('test.py', TINY_CLS_CONFIG, weights, '--data-root', data, '--work-dir', work_dir, *options,
                    **kwargs)


def accuracies_of(done):
    return [float(value) for value in re.findall(r'accuracy/top\d: ([\d.]+)', done.stdout)]


def features_of(backbone, folder, size=(32, 32), normed=True):
    """Features, by default of length 1, and classes of the images of a folder, without the package's data code."""
    files = sorted(folder.glob('*/*.png'))
    pixels = torch.from_numpy(np.stack([cv2.resize(cv2.imread(str(path)), size) for path in files])[
        ..., ::-1].copy()).float()
    with torch.no_grad():
        found = backbone.features(((pixels - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)).numpy()
    names = sorted({path.parent.name for path in files})
    return (found / np.linalg.norm(found, axis=1, keepdims=True) if normed else found,
            np.array([names.index(path.parent.name) for path in files]))


@pytest.fixture(scope='module')
def wanted(data, backbone):
    """Top-1 and top-2 accuracy of 5 neighbours."""
    features, labels = features_of(backbone, data / 'train')
    queries, truth = features_of(backbone, data / 'val')
    ranks = []
    for query, label in zip(queries, truth, strict=True):
        similar = features @ query
        places = np.argsort(-similar)[:5]
        votes = np.bincount(labels[places], np.exp(similar[places] / 0.07), minlength=3)
        ranks.append((votes > votes[label]).sum())
    found = [round(100 * float(np.mean(np.array(ranks) < k)), 4) for k in (1, 2)]
    assert 40 < found[0] < found[1] < 100  # neither chance nor perfect: the test can fail
    return found


def test_knn_is_what_numpy_finds(data, weights, wanted, tmp_path):
    """Though the config reads each training image three times, and augments it; the page says what classified."""
    done = judge(weights, data, tmp_path, '--knn', 5, '--report', '--cfg-options', 'classes_from_data=True')
    assert accuracies_of(done) == wanted
    assert 'a vote of the 5 nearest of 21 training images' in (tmp_path / 'report_knn/report.html').read_text()
    assert ' loaded ' in done.stdout and 'WARNING' not in done.stdout


def test_the_short_linear_form_is_what_torch_finds(data, weights, backbone, tmp_path):
    """From features without the package's data code; one image of each class chooses the rate."""
    done = judge(weights, data, tmp_path, '--linear', 'short', '--report', '--cfg-options', 'classes_from_data=True')
    (features, labels), (queries, truth) = (
        map(torch.from_numpy, features_of(backbone, data / part, normed=False)) for part in ('train', 'val'))
    held_out, rates = torch.zeros(21, dtype=bool), [21 / 256 * rate for rate in RATES]
    held_out[[0, 6, 13]] = True  # of 6, 7 and 8 images of the classes
    best, accuracies = LinearLayers(32, 3, rates, 100).fit(features[~held_out], labels[~held_out], 100).judge(
        features[held_out], labels[held_out])
    layer, = LinearLayers(32, 3, rates[best:best + 1], 100).fit(features, labels, 100).layers
    ranks = (layer(queries) > layer(queries).gather(1, truth[:, None])).sum(1)
    assert accuracies_of(done) == [round(100 * (ranks < k).float().mean().item(), 4) for k in (1, 2)]
    words = f'100 epochs on 21 training images without augmentation, learning rate {rates[best]:.3g}'
    assert words in done.stdout and words in (tmp_path / 'report_linear/report.html').read_text()
    assert f'{rates[0]:.3g}: {accuracies[0]:.2f}, {rates[1]:.3g}: ' in done.stdout
    assert 'chosen by only 3 held-out images' in done.stdout


def test_the_linear_form_of_the_paper(data, weights, tmp_path):
    """Its rate for a batch of 4; twice the same; few steps have a warning, with what helps."""
    one, two = (judge(weights, data, tmp_path, '--linear', 2, '--dtype', kind) for kind in ('float32', 'bfloat16'))
    assert '2 epochs on 21 training images with crops and flips, learning rate 1.56e-05' in one.stdout
    assert '12 steps with a learning rate of 1.56e-05' in one.stdout and 'For small data: --linear short' in one.stdout
    again = judge(weights, data, tmp_path, '--linear', 2)
    assert len(accuracies_of(one)) == 2 and accuracies_of(one) == accuracies_of(again) and accuracies_of(two)


@pytest.mark.parametrize('form', ('classifier', 'training', 'published checkpoint', 'DINO run'))
def test_any_file_with_a_class_token(form, backbone, data, wanted, tmp_path):
    """Heads are left out; of student and teacher it is the teacher."""
    state = backbone.state_dict()
    other = {name: torch.randn_like(value) if value.is_floating_point() else value for name, value in state.items()}
    head = {'head.weight': torch.randn(7, 32), 'head.bias': torch.randn(7)}
    dino = DINO(dict(type='XCiTClassifier', arch=ARCH, num_classes=0),
                dict(type=DINOHead, num_prototypes=16, hidden_channels=8, bottleneck_channels=4))
    dino.teacher.backbone.load_state_dict(state)
    content = {
        'classifier': dict(model={**state, **head}), 'DINO run': dict(state_dict=dino.state_dict(), meta=dict(epoch=1)),
        'training': dict(state_dict=prefixed({**state, **head}, 'backbone.'),
                         meta=dict(dataset_meta=dict(classes=tuple('abcdefg')))),
        'published checkpoint': {part: prefixed(tensors, 'module.backbone.')
                                 for part, tensors in (('student', other), ('teacher', state))}}[form]
    torch.save(content, tmp_path / 'any.pth')
    done = judge(tmp_path / 'any.pth', data, tmp_path, '--knn', 5, '--tta' if form == 'classifier' else '--knn=5')
    assert len(accuracies_of(done)) == 2 if form == 'classifier' else accuracies_of(done) == wanted


def test_all_vote_where_there_are_fewer_than_k(data, weights, tmp_path):
    done = judge(weights, data, tmp_path, '--knn', '--at-least', 'accuracy/top1=100', '--cfg-options',
                 f'test_dataloader.dataset.data_prefix.img_path={data}/train', check=False)
    assert done.returncode == 1 and 'accuracy/top1' in done.message and '20 nearest of 21' in done.stdout
    done = judge(weights, data, tmp_path, '--knn', 22)
    assert '21 nearest of 21' in done.stdout
    done = judge(weights, data, tmp_path, '--knn', 1, '--dtype', 'bfloat16', '--cfg-options',
                 f'test_dataloader.dataset.data_prefix.img_path={data}/train')
    assert accuracies_of(done)[0] == 100  # the nearest of each is itself


@pytest.mark.parametrize('config, options, prepare, words', (
    (TINY_CLS_CONFIG, ('--knn', ), 'dense', ('dino.pth', 'without a class token', 'give a classifier')),
    (TINY_CONFIG, ('--knn', ), None, ('--knn', 'classifier', 'XCiT', 'xcit_s12_p16_custom')),
    ('xcit_n12_p16_dino_small', ('--size=64', ), None, ('such as xcit_s12_p16_custom', '--knn')),
    (TINY_CLS_CONFIG, ('--knn', ), 'broken', ('green/03.png', )),
    (TINY_CLS_CONFIG, ('--knn', '--cfg-options', 'train_dataloader=None'), None, ('--knn', 'no train_dataloader')),
    (TINY_CLS_CONFIG, ('--knn', ), 'renamed', ("'crimson'", "'red'", 'different classes')),
    (TINY_CLS_CONFIG, ('--knn', ), 'empty', ('missing', '/train')),
    (TINY_CLS_CONFIG, ('--knn', '--cfg-options', 'train_dataloader.dataset.with_label=False'), None,
     ('without labels', '/train')),
    (TINY_CLS_CONFIG, ('--knn', '--cfg-options', 'model.backbone.num_classes=2'), None, ('3 class', '2 classes')),
    (TINY_CLS_CONFIG, ('--linear', '--cfg-options', 'test_dataloader.dataset.pipeline.1.edge=long'), None,
     ('--linear', 'ResizeEdge', '--linear short')),
    (TINY_CLS_CONFIG, ('--knn', '--cfg-options', 'train_dataloader.dataset.ann_file={}/list.txt'), 'listed',
     ('line 2 has the label 7', ))))
def test_what_cannot_be_judged_is_one_message(config, options, prepare, words, weights, data, demo_data, tmp_path):
    """Before anything runs, except where an image is damaged."""
    file = shutil.copy(weights, tmp_path)
    root = demo_data if config == TINY_CONFIG else shutil.copytree(data, tmp_path / 'data')
    if prepare:
        PREPARE[prepare](tmp_path, root)
    done = run_tool('test.py', config, file, '--data-root', root, '--work-dir', tmp_path / 'run',
                    *(option.format(tmp_path) for option in options), check=False)
    assert done.returncode == 1 and all(word in done.message for word in words), done.stdout[-3000:]
    assert prepare == 'broken' or ' loaded ' not in done.stdout


@pytest.mark.integration
def test_two_processes_find_what_one_finds(two_processes, data, weights, wanted, tmp_path):
    """21 and 15 images are dealt out unevenly; batches of 4 in each are one of 8."""
    args = TINY_CLS_CONFIG, weights, '--data-root', data, '--work-dir', tmp_path
    assert accuracies_of(two_processes.run_tool('test.py', *args, '--knn', 5)[0]) == wanted
    for length, options in ((2, ('--cfg-options', 'train_dataloader.batch_size=8')), ('short', ())):
        one = run_tool('test.py', *args, '--linear', length, *options)
        two, _ = two_processes.run_tool('test.py', *args, '--linear', length)
        assert accuracies_of(one) == accuracies_of(two)
        words = [re.search(r'classified by a linear.*', done.stdout)[0] for done in (one, two)]
        assert words[0] == words[1]


@pytest.fixture
def cfg(class_folders):
    """The tiny config for 12 training and 6 test images of three classes, in order."""
    return load_config(TINY_CLS_CONFIG, data_root=class_folders)


def hook_of(cfg):
    return cfg.custom_hooks[-1]


def features(cfg, loader, **options):
    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    runner = SimpleNamespace(model=MODELS.build(cfg.model), build_dataloader=DenseRunner.build_dataloader)
    return Features(runner, loader, **options)


def test_each_image_counts_once_in_order(cfg):
    """Though a wrapper repeats the first data set, and images that are not cropped differ in size."""
    both = load_config(TINY_CLS_CONFIG)
    for each in (cfg, both):
        del each.test_dataloader.dataset.pipeline[2]
    first, second = cfg.train_dataloader.dataset.copy(), cfg.test_dataloader.dataset
    both.train_dataloader.dataset = dict(type='ConcatDataset', datasets=[
        dict(type='RepeatDataset', times=3, dataset=first), second])
    set_knn(cfg, 5)
    loader = hook_of(cfg).loader
    found, labels = features(cfg, loader).once()
    assert labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert found.shape == (12, 32) and found.dtype == torch.float32
    alone, _ = features(cfg, dict(loader, batch_size=1)).once()
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)
    set_knn(both, 5)
    more, labels = features(both, hook_of(both).loader).once()
    assert len(more) == 18 and labels[12:].tolist() == [0, 0, 1, 1, 2, 2]
    torch.testing.assert_close(more[:12], found)


def test_passes_are_augmented_anew_and_the_same_with_the_same_seed(cfg):
    set_linear(cfg, 2)
    first, again, other = ([[*batches.passes('', 2)] for batches in [features(cfg, hook_of(cfg).loader, seed=seed)]][0]
                           for seed in (1, 1, 5))
    assert [ends for *_, ends in first] == [False, False, True] * 2  # 12 images in batches of 4
    for (a, labels, _), (b, others, _) in zip(first, again, strict=True):
        assert torch.equal(a, b) and torch.equal(labels, others)
    passes = [torch.cat([labels for _, labels, _ in batches]).tolist() for batches in (first[:3], first[3:], other[:3])]
    assert all(sorted(labels) == [0] * 4 + [1] * 4 + [2] * 4 for labels in passes) and len({*map(tuple, passes)}) == 3
    distances = torch.cdist(*(F.normalize(torch.cat([found for found, *_ in first[part]]))
                              for part in (slice(3), slice(3, 6))))
    assert distances.min(1).values.max() > 1e-3  # some image was cropped differently


def test_the_linear_layer_sees_crops_of_the_size_of_the_test(cfg):
    set_test_size(cfg, 48, 0.875)
    for size, loader in enumerate(LOADERS, 3):
        cfg[loader].batch_size = size
    whole = cfg.copy()
    set_linear(cfg, 7)
    assert (hook_of(cfg).loader.batch_size, hook_of(cfg).epochs) == (3, 7)
    steps = hook_of(cfg).loader.dataset.pipeline
    assert [step.type for step in steps] == ['LoadImageFromFile', 'RandomResizedCrop', 'RandomFlip', 'PackInputs']
    assert (steps[1].scale, steps[1].backend, steps[1].interpolation) == (48, 'pillow', 'bilinear')
    assert (steps[2].prob, steps[2].direction) == (0.5, 'horizontal')
    assert cfg.test_dataloader.dataset.pipeline[2].crop_size == 48  # the test itself does not change
    set_linear(whole, 7, short=True)
    steps = hook_of(whole).loader.dataset.pipeline
    assert (steps[1].scale, steps[2].crop_size, hook_of(whole).loader.batch_size) == (55, 48, 5)
    assert not hook_of(whole).loader.sampler.shuffle


@pytest.mark.slow
def test_features_tell_the_shapes_apart(tmp_path):
    """Without a label; and entropies of both models stay away from their bounds."""
    make_demo_data(tmp_path / 'data', 320, 80, grey=True)
    for name, base in (('pretext', 'xcit_n12_p16_dino_small'), ('classes', 'xcit_n12_p8_small')):
        (tmp_path / f'{name}.py').write_text(CONFIG.format(ROOT, base))
    run_tool('train.py', tmp_path / 'pretext.py', '--data-root', tmp_path / 'data/classes', '--work-dir',
             tmp_path / 'dino', '--epochs', 6, '--cfg-options', 'randomness.seed=0')

    def accuracy(weights):
        said = run_tool('test.py', tmp_path / 'classes.py', weights, '--data-root', tmp_path / 'data/classes',
                        '--work-dir', tmp_path / 'tested', '--knn').stdout
        return float(re.findall(r'accuracy/top1: ([\d.]+)', said)[-1])

    init_default_scope('mmpretrain')
    torch.manual_seed(0)
    model = MODELS.build(load_config(tmp_path / 'classes.py').model)
    torch.save(model.backbone.state_dict(), tmp_path / 'random.pth')
    learned, random = accuracy(tmp_path / 'dino'), accuracy(tmp_path / 'random.pth')
    curves = read_curves(tmp_path / 'dino')
    print(f'\nk-NN top-1 {learned}, random weights {random}')
    assert learned > random + 15
    for name in ('teacher_entropy', 'student_entropy'):
        assert 0.05 < curves[name][-1][1] / curves['entropy_bound'][-1][1] < 0.95
