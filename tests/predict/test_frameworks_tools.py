"""The frameworks' own tools with a run's checkpoint and its dumped config, in a process that imported the package."""
import cv2
import numpy as np
import pytest

from helpers.paths import TINY_CLS_CONFIG, TINY_SEG_CONFIG
from helpers.tools import run_tool

pytestmark = pytest.mark.filterwarnings('ignore')


@pytest.fixture
def detector(trained):
    return [str(trained[0] / name) for name in ('maskrcnn_xcit_tiny.py', 'epoch_2.pth')]


@pytest.fixture
def segmentor(trained_segmentor):
    return [str(trained_segmentor[0] / name) for name in ('semfpn_xcit_tiny.py', 'iter_4.pth')]


@pytest.fixture
def image(demo_data):
    return str(demo_data / 'val2017/000000000001.jpg')


def test_init_detector(detector, image):
    from mmdet.apis import inference_detector, init_detector
    model = init_detector(*detector, device='cpu')
    assert model.dataset_meta['classes'] == ('disc', 'square', 'triangle', 'star', 'cross')
    assert len(model.dataset_meta['palette']) == 5
    path, = inference_detector(model, [image])
    array = inference_detector(model, cv2.imread(image))
    assert len(path.pred_instances) and path.pred_instances.masks.shape[1:] == cv2.imread(image).shape[:2]
    assert (path.pred_instances.bboxes == array.pred_instances.bboxes).all()


def test_det_inferencer(detector, image):
    from mmdet.apis import DetInferencer
    infer = DetInferencer(*detector, device='cpu', show_progress=False)
    assert infer.visualizer.dataset_meta['classes'][0] == 'disc'
    found = infer([image, cv2.imread(image)], batch_size=2, return_vis=True, no_save_vis=True)
    first, second = found['predictions']
    assert first['scores'] and first['scores'] == second['scores'] and max(first['labels']) < 5
    assert found['visualization'][0].shape == cv2.imread(image).shape


def test_init_model(segmentor, image):
    from mmseg.apis import inference_model, init_model
    model = init_model(*segmentor, device='cpu')
    assert model.dataset_meta['classes'][:2] == ('background', 'disc') and len(model.dataset_meta['palette']) == 6
    path, = inference_model(model, [image])
    array = inference_model(model, cv2.imread(image))
    assert path.pred_sem_seg.data.shape == (1, *cv2.imread(image).shape[:2])
    assert (path.pred_sem_seg.data == array.pred_sem_seg.data).all()


def test_mmseg_inferencer(segmentor, image):
    from mmseg.apis import MMSegInferencer
    infer = MMSegInferencer(*segmentor, device='cpu')
    infer.show_progress = False
    found = infer([image, cv2.imread(image)], batch_size=2, return_vis=True)
    first, second = found['predictions']
    assert first.shape == cv2.imread(image).shape[:2] and (first == second).all() and first.max() < 6
    assert infer.model.dataset_meta['classes'][:2] == ('background', 'disc')
    assert tuple(infer.visualizer.dataset_meta['classes']) == infer.model.dataset_meta['classes']
    assert [tuple(colour) for colour in infer.visualizer.dataset_meta['palette']] == [
        tuple(colour) for colour in infer.model.dataset_meta['palette']]


def test_init_model_with_an_ignored_label(demo_data, image, tmp_path):
    from mmseg.apis import inference_model, init_model
    run_tool('train.py', TINY_SEG_CONFIG, '--data-root', demo_data, '--work-dir', tmp_path, '--ignore-label', '3')
    model = init_model(str(tmp_path / 'semfpn_xcit_tiny.py'), str(tmp_path / 'iter_4.pth'), device='cpu')
    assert model.dataset_meta['classes'] == ('background', 'disc', 'square', 'star', 'cross')
    assert inference_model(model, image).pred_sem_seg.data.max() < 5


def test_classifiers(class_folders, tmp_path):
    pytest.importorskip('mmpretrain')
    from mmpretrain import ImageClassificationInferencer
    from mmpretrain.apis import get_model
    run_tool('train.py', TINY_CLS_CONFIG, '--data-root', class_folders, '--work-dir', tmp_path, '--cfg-options',
             'classes_from_data=True', 'train_cfg.max_epochs=1')
    files = [str(tmp_path / name) for name in ('xcit_classifier_tiny.py', 'epoch_1.pth')]
    image = str(class_folders / 'val/red/0.png')
    infer = ImageClassificationInferencer(*files, device='cpu')
    path, = infer(image)
    array, = infer(cv2.imread(image))
    assert infer.classes == ('blue', 'green', 'red') and path['pred_class'] in infer.classes
    assert np.array_equal(path['pred_scores'], array['pred_scores'])
    assert get_model(*files, device='cpu').backbone.num_classes == 3
