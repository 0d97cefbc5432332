"""Classifiers through the tools: train, test, test at other sizes, and test on the layouts of ImageNet."""
import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import MODELS

from helpers.paths import TINY_CLS_CONFIG
from helpers.tools import run_tool
from xcit_dense import XCiTClassifier
from xcit_dense.compat import versions
from xcit_dense.config.loading import load_config
from xcit_dense.data.class_folders import imagenet_classes
from xcit_dense.data.classes import outputs_of, set_classes, take_classes

pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture(scope='module')
def run(class_folders, tmp_path_factory):
    """Work dir of a run of two epochs; its config asks for the best five of three classes."""
    pytest.importorskip('mmpretrain')
    work_dir = tmp_path_factory.mktemp('run')
    done = run_tool('train.py', TINY_CLS_CONFIG, '--data-root', class_folders, '--work-dir', work_dir, '--cfg-options',
                    'classes_from_data=True', 'val_evaluator.topk=(1,5)')
    assert 'val_evaluator.topk = (1,)' in done.stdout and 'accuracy/top1' in done.stdout
    return work_dir


def test_the_tool_tests(run, class_folders, tmp_path):
    """A work dir, and the weights alone under the authors' names, which load strictly."""
    args = '--data-root', class_folders, '--work-dir', tmp_path / 'test', '--at-least', 'accuracy/top1=0'
    first = run_tool('test.py', TINY_CLS_CONFIG, run, *args, '--cfg-options', 'classes_from_data=True').stdout
    best, = run.glob('best_*.pth')  # of the work dir
    state = torch.load(best, weights_only=False)['state_dict']
    theirs = dict(model={key.removeprefix('backbone.'): value for key, value in state.items()})
    torch.save(theirs, tmp_path / 'alone.pth')
    second = run_tool('test.py', TINY_CLS_CONFIG, tmp_path / 'alone.pth', *args).stdout
    line = 'accuracy/top1: '
    assert first.split(line)[1].split()[:3] == second.split(line)[1].split()[:3]
    state.pop('backbone.cls_token')
    torch.save(state, tmp_path / 'part.pth')
    done = run_tool('test.py', TINY_CLS_CONFIG, tmp_path / 'part.pth', *args, check=False)
    assert done.returncode == 1 and 'cls_token' in done.message


def test_the_checkpoint_of_a_run_tells_how_it_is_looked_at(run, class_folders, tmp_path, call_tool):
    code, output = call_tool('classify.py', run, class_folders / 'val', '--out', tmp_path / 'a.json')
    assert code == 0 and 'crops of 32 x 32 pixels' in output and '3 classes (names: the checkpoint)' in output
    code, output = call_tool('attention.py', run, class_folders / 'val', '--out', tmp_path / 'attention')
    assert code == 0 and 'WARNING' not in output, output
    code, message = call_tool('predict.py', TINY_CLS_CONFIG, run, class_folders / 'val', '--out', tmp_path / 'out')
    assert code == 1 and 'classify' in message and not (tmp_path / 'out').exists()


def test_several_sizes(run, class_folders, tmp_path, monkeypatch):
    args, seen = (TINY_CLS_CONFIG, run, '--data-root', class_folders, '--work-dir', tmp_path), {}

    def forward_or(error=None):
        def forward(model, x):
            if error and x.shape[2] == 40 and len(x) > 1:  # not in the trial, of one image
                raise error
            seen[tuple(x.shape[2:])] = x
            return model.head(model.features(x))

        monkeypatch.setattr(XCiTClassifier, 'forward', forward)

    forward_or()
    done = run_tool('test.py', *args, '--sizes', 48, 32, '--crop-ratio', 0.8)
    assert [*seen] == [(48, 48), (32, 32)]
    title, *lines = done.stdout.strip().splitlines()[-3:]
    assert title.split()[:4] == ['size', 'accuracy/top1', 'seconds', 'ms/image']
    assert [line.split()[0] for line in lines] == ['48', '32'] and cv2.imread(str(tmp_path / 'sizes.png')).std() > 5
    last = seen[32, 32]  # as tested alone
    run_tool('test.py', *args, '--size', 32, '--crop-ratio', 0.8)
    assert last is not seen[32, 32] and torch.equal(last, seen[32, 32])
    # what is done stays if a later size cannot be tested, or the user stops
    for error, message in ((torch.OutOfMemoryError('no memory'), '--sizes 40: out of memory: no memory. To need less: '
                            'a smaller --batch-size'), (KeyboardInterrupt(), 'stopped')):
        forward_or(error)
        done = run_tool('test.py', *args, '--sizes', 24, 40, 32, check=False)
        assert done.returncode and message in done.stdout and 'Traceback' not in done.stdout
        rows = json.loads((tmp_path / 'sizes.json').read_text())['sizes']
        assert [row['size'] for row in rows] == [24] and 'accuracy by image size' in done.stdout


@pytest.mark.parametrize('args, words', (
    ('--size 0', ('--size', 'got 0')), ('--size -1', ('got -1', )), ('--crop-ratio 1.1', ('--crop-ratio', '1.1')),
    ('--crop-ratio 0', ('--crop-ratio', 'got 0')),
    ('--size 64 --image-size 64', ('--image-size and --size', 'only one')),
    ('--sizes 64 --size 64', ('--sizes has all sizes', )), ('--sizes 64 --image-size 64', ('--sizes has all sizes', )),
    ('--sizes 64 48 64', ('must differ, got 64 48 64', )), ('--sizes 64 --knn', ('--sizes', '--knn')),
    ('--sizes 64 --at-least a=1', ('need a test at one size', )), ('--sizes 64 --show-dir s', ('need a test at one', )),
    ('--runtime openvino', ('only for exported files', )), ('--report xcit_s12_p16_imagenet', ('put --report last', )),
    ('--cfg-options test_cfg=None', ('has no test_cfg, so there is nothing to test', )),
    *((f'{option} --runtime onnxruntime', ('only for checkpoints: an exported', )) for option in (
        '--tta', '--knn', '--linear', '--dtype bfloat16', '--launcher pytorch'))))
def test_sizes_that_cannot_be(args, words, call_tool, demo_data):
    """And other options of a test that exclude each other."""
    pytest.importorskip('mmpretrain')
    file = 'absent.onnx' if 'onnxruntime' in args else 'absent.pth'
    code, message = call_tool('test.py', TINY_CLS_CONFIG, file, '--data-root', demo_data / 'classes', *args.split())
    assert code == 1 and all(word in message for word in words), message


@pytest.mark.parametrize('tool', ('train.py', 'test.py'))
def test_without_mmpretrain_the_command_is_named(tool, call_tool, monkeypatch):
    """Hidden from the metadata, which is what is asked: nothing of it is imported before."""
    real = versions.metadata.version

    def version(name):
        if name == 'mmpretrain':
            raise versions.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(versions.metadata, 'version', version)
    code, message = call_tool(tool, 'xcit_s12_p16_imagenet', *(['x.pth'] if tool == 'test.py' else []))
    assert code == 1 and 'mmpretrain is not installed' in message and "pip install 'mmpretrain>=1.2,<2'" in message


@pytest.mark.parametrize('count, wanted', ((5, (1, )), (6, (1, 5))))
@pytest.mark.parametrize('from_data', (True, False))
def test_no_more_best_classes_are_asked_for_than_there_are(count, wanted, from_data):
    """mmpretrain's metric stops on more, at the end of the first validation; all of them are always right."""
    pytest.importorskip('mmpretrain')
    cfg = load_config('xcit_n12_p8_small')
    others = [dict(type='RetrievalRecall', topk=7), dict(type='Accuracy', topk=(1, )),
              dict(type='Accuracy', thrs=0.5), dict(type='SingleLabelMetric')]
    cfg.val_evaluator = [cfg.val_evaluator, dict(type='Accuracy'), *others]
    if from_data:
        set_classes(cfg, [str(number) for number in range(count)])
    else:
        cfg.merge_from_dict({'classes_from_data': False, 'model.backbone.num_classes': count})
        take_classes(cfg)
    assert cfg.test_evaluator.topk == cfg.val_evaluator[0].topk == wanted
    assert cfg.val_evaluator[1].get('topk', (1, )) == wanted and cfg.val_evaluator[2:] == others


@pytest.mark.parametrize('model, wanted', (
    (None, None), (dict(backbone=dict(type='ResNet')), None), (dict(backbone=dict(type='LeNet5', num_classes=4)), 4),
    (dict(backbone=dict(type='XCiTClassifier', num_classes=0), head=dict(type='LinearClsHead', num_classes=7)), 7),
    (dict(backbone=dict(num_classes=3), head=dict(loss=dict(num_classes=9))), 3),
    (dict(head=[dict(num_classes=3)]), None)))
def test_outputs_of_a_model(model, wanted):
    assert outputs_of(model) == wanted


#: The places of the true classes among those that the model finds likeliest: two of six are first, four in the best 5.
PLACES = (0, 1, 0, 4, 5, 900)
OPTIONS = 'model.backbone.num_classes=1000', 'model.data_preprocessor.num_classes=1000', 'test_evaluator.topk=(1,5)'


@pytest.fixture(scope='module')
def judged(tmp_path_factory):
    """Weights, images of the size of the config, and the label that has its place in `PLACES` for each."""
    pytest.importorskip('mmpretrain')
    torch.manual_seed(0)
    cfg = load_config(TINY_CLS_CONFIG, pretrained=False)
    model = MODELS.build(dict(cfg.model.backbone, num_classes=1000, norm_cfg=dict(type='BN'), init_cfg=None)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # so that images differ in what they are taken for, and channels count
            parameter += 0.3 * torch.randn_like(parameter) * (parameter.ndim > 1)
    file = tmp_path_factory.mktemp('weights') / 'weights.pth'
    torch.save(dict(model=model.state_dict()), file)
    images = np.random.default_rng(0).integers(0, 256, (len(PLACES), cfg.size, cfg.size, 3), dtype=np.uint8)
    inputs = (images[..., ::-1] - (123.675, 116.28, 103.53)) / (58.395, 57.12, 57.375)  # RGB, ImageNet's statistics
    with torch.no_grad():
        order = model(torch.from_numpy(inputs).float().permute(0, 3, 1, 2)).argsort(1, descending=True)
    assert len(set(order[:, 0].tolist())) > 3
    return file, images, [int(row[place]) for row, place in zip(order, PLACES, strict=True)]


@pytest.mark.parametrize('kind, is_flat', (('ImageNet', False), ('ImageNet', True), ('CustomDataset', True)))
def test_top_1_and_top_5_are_those_of_the_model(kind, is_flat, judged, tmp_path):
    weights, images, labels = judged
    names = [f'{number}.png' for number in range(len(images))]
    if is_flat:
        (tmp_path / 'meta').mkdir()
        (tmp_path / 'meta/val.txt').write_text(''.join(f'{name} {label}\n' for name, label in zip(
            names, labels, strict=True)))
    else:
        names = [f'{list(imagenet_classes())[label]}/{name}' for name, label in zip(names, labels, strict=True)]
    for folder in ('',) if is_flat else imagenet_classes():
        (tmp_path / 'val' / folder).mkdir(parents=True)
    for name, image in zip(names, images, strict=True):
        cv2.imwrite(str(tmp_path / 'val' / name), image)
    dataset = [f'test_dataloader.dataset.type={kind}', 'test_dataloader.dataset.data_prefix=val', (
        'test_dataloader.dataset.split=val' if kind == 'ImageNet' else 'test_dataloader.dataset.ann_file=meta/val.txt')]
    done = run_tool('test.py', TINY_CLS_CONFIG, weights, '--data-root', tmp_path, '--work-dir', tmp_path / 'work',
                    '--show-dir', tmp_path / 'shown', '--cfg-options', *OPTIONS, *dataset)
    assert 'accuracy/top1: 33.3333  accuracy/top5: 66.6667' in done.stdout
