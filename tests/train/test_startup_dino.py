"""The block at the start of a training without labels."""
from types import SimpleNamespace

import numpy as np
from mmengine.registry import MODELS, init_default_scope
from PIL import Image

from xcit_dense.config.loading import load_config
from xcit_dense.data.unlabelled import UnlabelledImages
from xcit_dense.train import startup


def test_it_tells_backbone_head_and_views(tmp_path):
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / 'a.png')
    cfg = load_config('xcit_n12_p16_dino_small', data_root=tmp_path, work_dir=tmp_path / 'work')
    init_default_scope(cfg.default_scope)
    assert startup._model(MODELS.build(cfg.model)) == (
        'DINO, student and teacher: XCiTClassifier with 128 channels, DINOHead with 64 prototypes')
    dataset = {key: value for key, value in cfg.train_dataloader.dataset.items() if key != 'type'}
    assert startup._views(SimpleNamespace(dataset=UnlabelledImages(**dataset))) == dict(
        views='2 of 64 x 64 pixels and 4 of 32 x 32')
    assert startup._views(SimpleNamespace(dataset=UnlabelledImages(data_root=str(tmp_path), pipeline=[]))) == {}
