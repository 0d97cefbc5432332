"""Models loaded from Python, image files and weight files that several tests of predictions share."""
import numpy as np
import pytest
import torch
from PIL import Image

import xcit_dense
from helpers.models import build, prefixed, randomise
from helpers.paths import TINY_SEG_CONFIG
from xcit_dense import XCiT, XCiTClassifier


@pytest.fixture(scope='session')
def detector(trained):
    return xcit_dense.load(trained[0], threshold=0)


@pytest.fixture(scope='session')
def segmentor(trained_segmentor):
    return xcit_dense.load(TINY_SEG_CONFIG, trained_segmentor[0])


@pytest.fixture(scope='session')
def path(demo_data):
    return demo_data / 'val2017/000000000001.jpg'


@pytest.fixture(scope='session')
def photograph():
    """A function that writes an image, by default 24 x 40 pixels, whose EXIF tag asks for a turn; returns its path."""

    def write(path, image=None):
        exif = Image.Exif()
        exif[0x0112] = 6
        if image is None:
            image = np.random.default_rng(0).integers(0, 255, (24, 40, 3), dtype=np.uint8)
        Image.fromarray(image).save(path, exif=exif)
        return path

    return write


@pytest.fixture(scope='session')
def files(tmp_path_factory):
    """A folder with weight files of small models, by what they hold."""
    folder = tmp_path_factory.mktemp('weights')
    torch.manual_seed(1)
    arch, plain = 'nano_12_p16', dict(norm_cfg=dict(type='BN'))
    state = randomise(XCiTClassifier(arch, num_classes=1000, **plain)).state_dict()
    few = {name: value[:4] if name.startswith('head.') else value for name, value in state.items()}
    none = {name: value for name, value in state.items() if not name.startswith('head.')}
    stem = 'patch_embed.proj.0.0.weight'
    content = dict(
        imagenet=state, few=few, dino=none, dense=prefixed(randomise(build(16)).state_dict(), 'backbone.'),
        p8=dict(model=randomise(XCiTClassifier('nano_12_p8', num_classes=7, **plain)).state_dict()),
        backbone=randomise(XCiT(arch, out_strides=None, **plain)).state_dict(),
        many=dict(meta=dict(dataset_meta=dict(classes=tuple('abcde'))), state_dict=few),
        run=dict(meta=dict(dataset_meta=dict(classes=tuple('dbca'))), state_dict=prefixed(few, 'backbone.')),
        grey={**few, stem: few[stem].sum(1, keepdim=True)})
    for name, tensors in content.items():
        torch.save(tensors, folder / f'{name}.pth')
    return folder
