"""A shipped config of each kind, but of arch nano: its exported file compared with its checkpoint."""
import re

import numpy as np
import pytest
import torch
from export.exported import opened
from export.exported_detectors import assert_same, with_findings
from export.exported_detectors import images as scenes

import xcit_dense
from helpers.models import randomise
from helpers.recipes import DENSE, build, nano
from helpers.segmentors import check_labels, let_many_classes_win, predicted
from xcit_dense.config.loading import load_config
from xcit_dense.export.finishing import images

#: Batch, height and width: odd, smaller and larger than what is traced; the last a strip, which detectors pad.
SHAPES = ((1, 61, 83), (3, 133, 97), (1, 250, 331), (1, 9, 200))
#: Of models with these heads only the backbone is exported; the others are in test_detector.py, made smaller.
ELSEWHERE = 'condinst_', 'deformable_detr_', 'dino_', 'mask2former_', 'cascade_', 'fasterrcnn_', 'retinanet_'
#: The config of each kind of model that is tested: of the largest data set and the smallest size, patch 8 if there is.
CONFIGS = {re.sub(r'_xcit_[a-z]\d+_p\d+|_(coco|ade20k|custom|finetune|small)(?=_|$)', '', name): name
           for name in sorted(DENSE, key=lambda name: (name.endswith(('_coco', '_ade20k')), '_n12_' in name, name))
           if not name.startswith(ELSEWHERE)}


def test_each_config_is_of_a_kind():
    assert CONFIGS.keys() == {'atss', 'maskrcnn', 'segformer', 'semfpn', 'upernet', 'upernet_feature2pyramid'}
    assert CONFIGS['semfpn'] == 'semfpn_xcit_n12_p8_ade20k' and CONFIGS['atss'] == 'atss_xcit_s12_p8_coco'


@pytest.mark.slow
@pytest.mark.parametrize('name', CONFIGS.values(), ids=CONFIGS)
def test_its_file_does_what_the_checkpoint_does(name, tmp_path):
    cfg = nano(load_config(name, pretrained=False))
    finds_objects = cfg.default_scope == 'mmdet'
    torch.manual_seed(1)
    model = build(cfg).eval()
    model = with_findings(model, wide=True) if finds_objects else let_many_classes_win(randomise(model))
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    cfg.dump(tmp_path / 'config.py')
    run = opened(xcit_dense.export_model(tmp_path / 'config.py', tmp_path / 'weights.pth', tmp_path / 'model.onnx',
                                         scores=not finds_objects).path)
    for shape in SHAPES:
        batch = scenes(*shape) if finds_objects else images(*shape)
        if finds_objects:
            assert sum(assert_same(run(image=batch), model, batch)) > 0
        else:
            for size in (None, (83, 140)):
                check_labels(run(image=batch, size=np.array(size or (0, 0))), predicted(model, batch, size))
