"""A test on folders in the layouts of ImageNet, through the tool, against the model called by itself."""
import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import MODELS

from helpers.paths import TINY_CLS_CONFIG
from helpers.tools import run_tool
from xcit_dense.config.loading import load_config
from xcit_dense.data.imagenet import imagenet_classes

pytest.importorskip('mmpretrain')
#: The places of the true classes among those that the model finds likeliest: two of six are first, four in the best 5.
PLACES = (0, 1, 0, 4, 5, 900)
OPTIONS = 'model.backbone.num_classes=1000', 'model.data_preprocessor.num_classes=1000', 'test_evaluator.topk=(1,5)'


@pytest.fixture(scope='module')
def judged(tmp_path_factory):
    """Weights, images of the size of the config, and the label that has its place in `PLACES` for each."""
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
    mistakes = json.loads((tmp_path / 'shown/mistakes.json').read_text())
    shown = (lambda number: list(imagenet_classes().values())[number]) if kind == 'ImageNet' else str
    assert {mistake['path']: mistake['truth'] for mistake in mistakes} == {
        str(tmp_path / 'val' / name): shown(label)
        for name, label, place in zip(names, labels, PLACES, strict=True) if place}
