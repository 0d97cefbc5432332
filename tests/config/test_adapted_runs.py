"""Stock configs with XCiT, as a user takes them: own data with other classes, from `adapt` to the report."""
import json

import pytest
from mmengine.config import Config

from helpers.refusals import stock
from helpers.tools import run_tool
from xcit_dense.data.demo import make_demo_data

CLASSES = 'disc', 'square', 'star'
#: One of each kind of head.
STOCK = [f'mmdet::{name}.py' for name in (
    'gn+ws/mask-rcnn_r50_fpn_gn-ws-all_2x_coco', 'fcos/fcos_r50-caffe_fpn_gn-head_1x_coco',
    'centernet/centernet_r18_8xb16-crop512-140e_coco', 'yolox/yolox_s_8xb8-300e_coco',
    'rtmdet/rtmdet-ins_tiny_8xb32-300e_coco', 'solov2/solov2_r50_fpn_1x_coco',
    'dino/dino-4scale_r50_8xb2-12e_coco', 'mask2former/mask2former_r50_8xb2-lsj-50e_coco')]
STOCK += [f'mmseg::{name}-512x512.py' for name in (
    'sem_fpn/fpn_r50_4xb4-160k_ade20k', 'deeplabv3plus/deeplabv3plus_r50-d8_4xb4-80k_ade20k',
    'ocrnet/ocrnet_hr18_4xb4-80k_ade20k', 'knet/knet-s3_r50-d8_upernet_8xb2-adamw-80k_ade20k',
    'psanet/psanet_r50-d8_4xb4-80k_ade20k', 'fastfcn/fastfcn_r50-d32_jpu_psp_4xb4-80k_ade20k',
    'segmenter/segmenter_vit-s_fcn_8xb1-160k_ade20k', 'mask2former/mask2former_swin-t_8xb2-160k_ade20k')]


@pytest.fixture(scope='module')
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp('data')
    make_demo_data(folder, num_train=4, num_val=2, size=64, classes=CLASSES)
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not stock('mmdet').is_dir(), reason='the maintained forks ship no stock configs')
@pytest.mark.parametrize('name', STOCK)
def test_from_a_stock_config_to_a_report_on_own_data(name, data, tmp_path):
    config, run, shown, finds_objects = tmp_path / 'mine.py', tmp_path / 'run', tmp_path / 'shown', 'mmdet' in name
    run_tool('adapt', name, '--arch', 'nano_12_p16', '--out', config, '--data-root', data)
    assert 'A training step' not in config.read_text()
    options, model = ['train_cfg.val_interval=1'], Config.fromfile(config).model
    if 'score_thr' in model.test_cfg:
        options += ['model.test_cfg.score_thr=0']  # after one step it would find nothing
    if 'num_queries' in model:
        options += ['model.num_queries=16', 'model.test_cfg.max_per_img=16']  # so small images have few tokens
    run_tool('train', config, '--data-root', data, '--work-dir', run, '--image-size', 64, '--batch-size', 2,
             '--workers', 0, '--no-pretrained', '--epochs' if finds_objects else '--iterations', 1, '--cfg-options',
             *options)
    run_tool('test', run, '--report')
    run_tool('predict', run, data / 'val2017', '--out', shown)
    if finds_objects:
        assert {one['category_name'] for one in json.loads((shown / 'results.json').read_text())} <= {*CLASSES}
    else:
        assert [*json.loads((shown / 'classes.json').read_text())['classes'].values()] == ['background', *CLASSES]
    assert len([*shown.glob('*.jpg')]) == 2 and (run / 'report/report.html').exists()
