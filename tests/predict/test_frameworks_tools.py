"""The frameworks' own tools with a run's checkpoint and its dumped config, in a process that imported the package."""
import cv2
import numpy as np
import pytest
from mmdet.apis import DetInferencer, inference_detector, init_detector
from mmseg.apis import MMSegInferencer, inference_model, init_model

from helpers.paths import TINY_CLS_CONFIG
from helpers.tools import run_tool

pytestmark = pytest.mark.filterwarnings('ignore')


def test_detectors(trained, path):
    files, image = [str(trained[0] / name) for name in ('maskrcnn_xcit_tiny.py', 'epoch_2.pth')], cv2.imread(str(path))
    model = init_detector(*files, device='cpu')
    assert model.dataset_meta['classes'] == ('disc', 'square', 'triangle', 'star', 'cross')
    assert len(model.dataset_meta['palette']) == 5
    read, = inference_detector(model, [str(path)])
    assert len(read.pred_instances) and read.pred_instances.masks.shape[1:] == image.shape[:2]
    infer = DetInferencer(*files, device='cpu', show_progress=False)
    found = infer([str(path), image], batch_size=2, return_vis=True, no_save_vis=True)
    first, second = found['predictions']
    assert first['scores'] and first['scores'] == second['scores'] and max(first['labels']) < 5
    assert found['visualization'][0].shape == image.shape


def test_segmentors(trained_segmentor, path):
    files = [str(trained_segmentor[0] / name) for name in ('semfpn_xcit_tiny.py', 'iter_4.pth')]
    model, image = init_model(*files, device='cpu'), cv2.imread(str(path))
    assert model.dataset_meta['classes'][:2] == ('background', 'disc') and len(model.dataset_meta['palette']) == 6
    read, = inference_model(model, [str(path)])
    assert read.pred_sem_seg.data.shape == (1, *image.shape[:2])
    infer = MMSegInferencer(*files, device='cpu')
    infer.show_progress = False
    first, second = infer([str(path), image], batch_size=2, return_vis=True)['predictions']
    assert first.shape == image.shape[:2] and (first == second).all() and first.max() < 6
    for owner in (infer.model, infer.visualizer):
        assert tuple(owner.dataset_meta['classes']) == model.dataset_meta['classes']
        assert np.array_equal(owner.dataset_meta['palette'], model.dataset_meta['palette'])


def test_classifiers(class_folders, tmp_path):
    pytest.importorskip('mmpretrain')
    from mmpretrain import ImageClassificationInferencer
    from mmpretrain.apis import get_model
    run_tool('train.py', TINY_CLS_CONFIG, '--data-root', class_folders, '--work-dir', tmp_path, '--cfg-options',
             'classes_from_data=True', 'train_cfg.max_epochs=1')
    files = [str(tmp_path / name) for name in ('xcit_classifier_tiny.py', 'epoch_1.pth')]
    image = str(class_folders / 'val/red/0.png')
    infer = ImageClassificationInferencer(*files, device='cpu')
    assert infer.classes == ('blue', 'green', 'red') and infer(image)[0]['pred_class'] in infer.classes
    assert get_model(*files, device='cpu').backbone.num_classes == 3
